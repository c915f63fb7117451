//! The counters of streams in the text format of Prometheus
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use iof_proto::names::sanitize;
use iof_proto::{Found, Rank, StreamStats, Value};

/// The metrics of streams, each with its help and type.
const OF_STREAMS: [(&str, &str, &str); 6] = [
    ("iof_stream_produced_bytes_total", "Bytes read from the rank.", "counter"),
    ("iof_stream_dropped_bytes_total", "Bytes dropped because the cache was full.", "counter"),
    ("iof_stream_cached_bytes", "Bytes in the cache.", "gauge"),
    ("iof_stream_lag_bytes", "Bytes that the slowest reader has not read yet.", "gauge"),
    ("iof_stream_complete", "1 after the last byte, otherwise 0.", "gauge"),
    ("iof_stream_missing_bytes", "Bytes missing at least because a node was lost.", "gauge"),
];

/// Returns the values of these metrics, if the stream has them.
fn values(stream: &StreamStats) -> [Option<u64>; 6] {
    let StreamStats { produced, dropped, cached, complete, missing, readers, .. } = stream;
    let lag = readers.iter().map(|reader| reader.lag).max();
    [Some(*produced), Some(*dropped), Some(*cached), lag, Some((*complete).into()), *missing]
}

/// Returns the page.
pub fn page(found: &[Found]) -> String {
    let streams = |found: &Found| match &found.value {
        Value::Streams(streams) => streams.clone(),
        _ => Vec::new(),
    };
    let streams: Vec<StreamStats> = found.iter().flat_map(streams).collect();
    let mut text = String::new();
    for (index, (name, help, kind)) in OF_STREAMS.into_iter().enumerate() {
        text += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        let value = |stream| values(stream).get(index).copied().flatten().map(|value| (stream, value));
        for (stream, value) in streams.iter().filter_map(value) {
            text += &format!("{name}{{{}}} {value}\n", labels(stream));
        }
    }
    text
}

/// Returns the labels of a stream. What was logged for a whole job has an empty rank.
fn labels(StreamStats { source, channel, logged, .. }: &StreamStats) -> String {
    let rank = if source.rank == Rank::UNDEF { String::new() } else { source.rank.to_string() };
    // The text may be shown on a terminal.
    let nspace = sanitize(source.nspace.as_str()).replace('\\', "\\\\").replace('"', "\\\"");
    format!("nspace=\"{nspace}\",rank=\"{rank}\",channel=\"{channel}\",logged=\"{logged}\"")
}

#[cfg(test)]
mod tests {
    use iof_proto::Nspace;

    use super::*;
    use crate::top::stream;

    #[test]
    fn each_metric_has_one_head_and_each_set_of_labels_one_value() {
        let mut evil = stream(3, 90, 10, &[5, 7]);
        evil.source.nspace = Nspace::new("a\"b\\c").unwrap();
        let value = Value::Streams(vec![evil]);
        let text = page(&[Found { query: 0, key: "stats".into(), value }]);
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let wanted = [
            ("produced_bytes_total", 90),
            ("dropped_bytes_total", 10),
            ("cached_bytes", 80),
            ("lag_bytes", 7),
            ("complete", 0),
        ];
        let labels = r#"nspace="a\"b\\c",rank="3",channel="stdout",logged="false""#;
        assert_eq!(samples, wanted.map(|(name, value)| format!("iof_stream_{name}{{{labels}}} {value}")));
        for word in ["HELP", "TYPE"] {
            assert_eq!(text.lines().filter(|line| line.starts_with(&format!("# {word} iof_"))).count(), 6);
        }
    }
}
