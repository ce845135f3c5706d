package scalers

// externalMetricType is what the other scalers take from a cloud's.
const externalMetricType = "External"
