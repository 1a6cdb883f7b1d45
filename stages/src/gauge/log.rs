//! Histograms as files that public HdrHistogram tools read.
//!
//! `.hlog` is an interval log, V2 compressed: one histogram for each interval, in nanoseconds. `.hgrm` is
//! the percentile distribution of all of it, in microseconds. Both are written outside of the data path.

use super::latency::LatencyHistogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use std::fmt::Write;
use std::io;
use std::time::{Duration, SystemTime};

/// Steps to each halving of what is left above a percentile.
const STEPS_PER_HALF: u32 = 5;

/// What was recorded in one stretch of time.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Since [`LogHead::start`].
    pub begin: Duration,
    /// How long.
    pub length: Duration,
    /// What.
    pub histogram: LatencyHistogram,
}

/// What stands at the top of an interval log.
#[derive(Clone, Debug)]
pub struct LogHead<'a> {
    /// Lines of comment.
    pub comments: &'a [String],
    /// When it all began.
    pub start: SystemTime,
    /// Name of the series: every interval carries it.
    pub series: &'a str,
}

/// An interval log; durations are in nanoseconds, the column of maxima in milliseconds.
///
/// # Errors
/// When an interval can't be written into memory: never, short of a name with a comma or a blank.
pub fn hlog(head: &LogHead<'_>, intervals: &[Interval]) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    for comment in head.comments {
        builder.add_comment(comment);
    }
    builder.add_comment("[Logged with Millstream; values are nanoseconds]");
    builder.with_base_time(head.start).with_start_time(head.start).with_max_value_divisor(1e6);
    let mut writer = builder.begin_log_with(&mut bytes, &mut serializer)?;
    let tag = Tag::new(head.series);
    for Interval { begin, length, histogram } in intervals {
        let written = writer.write_histogram(&histogram.0, *begin, *length, tag);
        written.map_err(|error| io::Error::other(format!("{error:?}")))?;
    }
    Ok(bytes)
}

/// The percentile distribution, in microseconds, as HdrHistogram's plotters take it.
pub fn hgrm(histogram: &LatencyHistogram) -> String {
    let histogram = &histogram.0;
    let us = |nanoseconds: f64| nanoseconds / 1e3;
    let mut text = String::new();
    let mut line = |text_line: std::fmt::Arguments<'_>| {
        text.write_fmt(text_line).expect("a String takes everything");
        text.push('\n');
    };
    line(format_args!(
        "{:>12} {:>14} {:>10} {:>14}\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    ));
    let mut total = 0;
    for point in histogram.iter_quantiles(STEPS_PER_HALF) {
        total += point.count_since_last_iteration();
        let (value, quantile) =
            (us(point.value_iterated_to() as f64), point.quantile_iterated_to());
        match quantile < 1.0 {
            true => line(format_args!(
                "{value:>12.3} {quantile:>2.12} {total:>10} {:>14.2}",
                1.0 / (1.0 - quantile)
            )),
            false => line(format_args!("{value:>12.3} {quantile:>2.12} {total:>10}")),
        }
    }
    let (mean, deviation) = (us(histogram.mean()), us(histogram.stdev()));
    let max = us(histogram.max() as f64);
    line(format_args!("#[Mean    = {mean:>12.3}, StdDeviation   = {deviation:>12.3}]"));
    line(format_args!("#[Max     = {max:>12.3}, Total count    = {:>12}]", histogram.len()));
    line(format_args!("#[Buckets = {:>12}, SubBuckets     = {:>12}]", 32, 2048));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::Histogram;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    fn histogram(first_us: u64) -> LatencyHistogram {
        let mut histogram = LatencyHistogram::default();
        (0..500).for_each(|i| histogram.record(Duration::from_micros(first_us + i * i)));
        histogram
    }

    /// base64 of RFC 4648, which the log has its histograms in.
    fn decode(text: &str) -> Vec<u8> {
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let (mut bytes, mut bits, mut count) = (vec![], 0u32, 0);
        for digit in text.bytes().filter(|&digit| digit != b'=') {
            let value = alphabet.iter().position(|&known| known == digit).expect("base64");
            (bits, count) = (bits << 6 | value as u32, count + 6);
            if count >= 8 {
                count -= 8;
                bytes.push((bits >> count) as u8);
            }
        }
        bytes
    }

    #[test]
    fn a_log_is_read_back_interval_by_interval() {
        let intervals = [7, 90_000].map(|first_us| Interval {
            begin: Duration::from_millis(first_us),
            length: Duration::from_secs(1),
            histogram: histogram(first_us),
        });
        let head = LogHead {
            comments: &["one".into()],
            start: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
            series: "inter-token",
        };
        let log = hlog(&head, &intervals).expect("it is written");
        let entries = IntervalLogIterator::new(&log).map(|entry| entry.expect("a line of a log"));
        let mut found = vec![];
        for entry in entries {
            let LogEntry::Interval(interval) = entry else { continue };
            assert_eq!(interval.tag().expect("a tag").as_str(), "inter-token");
            let bytes = decode(interval.encoded_histogram());
            let read: Histogram<u64> =
                Deserializer::new().deserialize(&mut &bytes[..]).expect("a histogram");
            found.push((interval.start_timestamp(), read));
        }
        let expected = intervals.map(|interval| (interval.begin, interval.histogram.0));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_distribution_ends_with_the_maximum_and_all_counts() {
        let text = hgrm(&histogram(3));
        let rows = text.lines().skip(2).take_while(|line| !line.starts_with('#'));
        let rows: Vec<Vec<f64>> = rows
            .map(|line| line.split_whitespace().map(|n| n.parse().expect("a number")).collect())
            .collect();
        let last = rows.last().expect("rows");
        assert_eq!((last[1], last[2]), (1.0, 500.0));
        assert!(rows.is_sorted_by(|a, b| a[0] <= b[0] && a[1] <= b[1]), "{text}");
        assert!(text.contains("Total count    =          500"), "{text}");
        assert!(hgrm(&LatencyHistogram::default()).contains("Total count    =            0"));
    }
}
