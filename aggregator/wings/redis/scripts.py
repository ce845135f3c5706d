"""The Lua scripts that claim entries and give them back: atomic in Redis, so no two aggregators get one entry."""

_SHARED = """
local function named(list)
  local fields = {}
  for i = 1, #list, 2 do fields[list[i]] = list[i + 1] end
  return fields
end
-- The bytes of an entry. One whose value or whose other fields are too large is returned with their sizes instead, and
-- with the fields by which its sender is answered.
local function cut(entry, most, most_others)
  local own, value, others = named(entry[2]), 0, 0
  for i = 1, #entry[2], 2 do
    local size = #entry[2][i + 1]
    if entry[2][i] == 'value' then value = value + size else others = others + #entry[2][i] + size end
  end
  if value <= most and others <= most_others then return value + others end
  entry[2] = {'value', '', 'value-size', tostring(value), 'other-size', tostring(others)}
  for _, name in ipairs({'reply_to', 'request_id', 'content-type', 'correlation_id'}) do
    if own[name] and #own[name] <= 1024 then
      entry[2][#entry[2] + 1], entry[2][#entry[2] + 2] = name, own[name]
    end
  end
  return 0
end
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local most, most_value_bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local most_other_bytes, most_bytes = tonumber(ARGV[5]), tonumber(ARGV[6])
local claimed = {}
"""
CLAIM = (
    _SHARED
    + """
-- Claims the next entries while their tokens fit the room (ARGV[7]); an entry is never split. Returns the time (Unix
-- seconds), the id of the last entry that any consumer claimed, and the entries.
local room, time, from = tonumber(ARGV[7]), redis.call('TIME'), nil
local now_s = time[1] + time[2] / 1e6
for _, info in ipairs(redis.call('EXISTS', stream) == 1 and redis.call('XINFO', 'GROUPS', stream) or {}) do
  if named(info).name == group then from = named(info)['last-delivered-id'] end
end
if not from then return redis.error_reply('NOGROUP no group ' .. group .. ' of ' .. stream) end
local tokens, bytes, full = 0, 0, false
while not full do
  local page = redis.call('XRANGE', stream, '(' .. from, '+', 'COUNT', 8)
  full = #page == 0
  for _, entry in ipairs(page) do
    local fields = named(entry[2])
    local own = math.max(1, tonumber(fields.token_count) or math.ceil(#(fields.value or '') / 4))
    local expire = tonumber(fields.expire)
    if expire and expire <= now_s then own = 0 end  -- it is answered, not computed
    -- The first one always fits: one that is larger than every room would wait for ever.
    full = #claimed > 0 and (tokens + own > room or bytes > most_bytes or #claimed == most)
    if full then break end
    tokens, bytes, from = tokens + own, bytes + cut(entry, most_value_bytes, most_other_bytes), entry[1]
    claimed[#claimed + 1] = entry
  end
end
if #claimed > 0 then redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', #claimed, 'STREAMS', stream, '>') end
return {string.format('%.6f', now_s), from, claimed}
"""
)
TAKE_OVER = (
    _SHARED
    + """
-- Claims entries that another consumer has had for ARGV[7] ms without a sign of life, from a cursor (ARGV[8]) on, and
-- forgets consumers that hold none and were silent for an hour. Returns the next cursor, and the entries: a few at a
-- time, as their sizes are known only once they are claimed.
local found = redis.call('XAUTOCLAIM', stream, group, consumer, ARGV[7], ARGV[8], 'COUNT', 16)
for _, entry in ipairs(found[2]) do
  if entry and entry[2] then
    cut(entry, most_value_bytes, most_other_bytes)
    claimed[#claimed + 1] = entry
  end
end
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local each = named(info)
  if each.pending == 0 and each.idle > 3600000 then redis.call('XGROUP', 'DELCONSUMER', stream, group, each.name) end
end
return {found[1], claimed}
"""
)
LEAVE = """
-- Lets others take over at once what a consumer holds, as if it had been silent for ARGV[3] ms. One that holds nothing
-- is forgotten: Redis deletes a consumer with its claims, and nobody would get those entries again.
local stream, group, consumer, from = KEYS[1], ARGV[1], ARGV[2], '-'
local page = redis.call('XPENDING', stream, group, from, '+', 1000, consumer)
if #page == 0 then return redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer) end
while #page > 0 do
  local claim = {'XCLAIM', stream, group, consumer, 0}
  for _, each in ipairs(page) do claim[#claim + 1] = each[1] end
  from = '(' .. claim[#claim]
  for _, option in ipairs({'IDLE', ARGV[3], 'JUSTID'}) do claim[#claim + 1] = option end
  redis.call(unpack(claim))
  page = redis.call('XPENDING', stream, group, from, '+', 1000, consumer)
end
"""
