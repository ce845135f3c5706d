"""The pure heart: queue, packing, lanes, watermark and controllers; time comes in as an argument, in seconds."""
