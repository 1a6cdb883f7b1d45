//! A bench in pictures: percentiles of latencies, time by stage, and one token over seats and drives.
//!
//! Plain SVG, written as text; no picture needs anything from outside.

use super::speed::SpeedRow;
use millstream_stages::gauge::{Event, LatencyHistogram};
use millstream_stages::kind::{STAGES, StageKind};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Colours that colour-blind readers tell apart; by stage in its order, then drives.
const COLOURS: [&str; 9] = [
    "#999999", "#0072b2", "#e69f00", "#f0e442", "#000000", "#009e73", "#cc79a7", "#56b4e9",
    "#d55e00",
];
const DRIVE_COLOUR: &str = COLOURS[8];

fn begin(width: f64, height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"18\" font-size=\"14\">{}</text>\n",
        escaped(title)
    )
}

/// Text inside an element.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn add(svg: &mut String, text: std::fmt::Arguments<'_>) {
    svg.write_fmt(text).expect("a String takes everything");
    svg.push('\n');
}

/// The plot of [`percentiles`]: both axes logarithmic, so that 90 %, 99 %, 99.9 % are alike far apart.
struct Plot {
    records_max: f64,
    /// log10 of the longest latency, in nanoseconds.
    ns_max: f64,
}

/// Left, top, width and height of it.
const PLOT: [f64; 4] = [70.0, 40.0, 560.0, 380.0];
/// Lines across: log10 of nanoseconds, and what they are called.
const DURATIONS: [(i32, &str); 9] = [
    (3, "1 us"),
    (4, "10 us"),
    (5, "100 us"),
    (6, "1 ms"),
    (7, "10 ms"),
    (8, "100 ms"),
    (9, "1 s"),
    (10, "10 s"),
    (11, "100 s"),
];

impl Plot {
    fn x(&self, share: f64) -> f64 {
        let nines = -(1.0 - share).max(1.0 / self.records_max).log10();
        PLOT[0] + PLOT[2] * nines / self.records_max.log10()
    }

    /// From 100 ns on: below that a clock says little.
    fn y(&self, ns: f64) -> f64 {
        let share = (ns.max(100.0).log10() - 2.0) / (self.ns_max - 2.0).max(0.1);
        PLOT[1] + PLOT[3] * (1.0 - share)
    }

    /// Lines and words of both axes.
    fn axes(&self, svg: &mut String) {
        let [left, top, width, height] = PLOT;
        let bottom = top + height;
        for nines in 0..=self.records_max.log10() as usize {
            let x = self.x(1.0 - 10f64.powi(-(nines as i32)));
            let label = match nines {
                0 => "0".to_owned(),
                1 => "90".to_owned(),
                2 => "99".to_owned(),
                n => format!("99.{}", "9".repeat(n - 2)),
            };
            add(svg, format_args!("<path d=\"M{x:.1} {top}V{bottom}\" stroke=\"#ddd\"/>"));
            let y = bottom + 16.0;
            add(
                svg,
                format_args!(
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{label} %</text>"
                ),
            );
        }
        for (power, label) in DURATIONS.iter().filter(|(power, _)| f64::from(*power) <= self.ns_max)
        {
            let (x, y, right) = (left - 6.0, self.y(10f64.powi(*power)), left + width);
            add(svg, format_args!("<path d=\"M{left} {y:.1}H{right}\" stroke=\"#ddd\"/>"));
            let y = y + 4.0;
            add(
                svg,
                format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{label}</text>"),
            );
        }
    }

    /// The line of a series, and its name beside the plot.
    fn line(&self, svg: &mut String, number: usize, name: &str, histogram: &LatencyHistogram) {
        let stroke = format!(
            "stroke=\"{}\" stroke-width=\"2\"{}",
            COLOURS[number % COLOURS.len()],
            if number < COLOURS.len() { "" } else { " stroke-dasharray=\"4 3\"" }
        );
        let point =
            |&(share, ns): &(f64, u64)| format!("{:.1},{:.1}", self.x(share), self.y(ns as f64));
        let points: Vec<String> = histogram.points().iter().map(point).collect();
        let points = points.join(" ");
        add(svg, format_args!("<polyline points=\"{points}\" fill=\"none\" {stroke}/>"));
        let (x, y) = (PLOT[0] + PLOT[2] + 14.0, PLOT[1] + 14.0 + 18.0 * number as f64);
        add(svg, format_args!("<path d=\"M{x} {y}h20\" {stroke}/>"));
        let (x, y, name) = (x + 26.0, y + 4.0, escaped(name));
        add(svg, format_args!("<text x=\"{x}\" y=\"{y}\">{name}</text>"));
    }
}

/// Latency over percentile, one line a series.
pub fn percentiles(series: &[(String, LatencyHistogram)]) -> String {
    let series: Vec<_> = series.iter().filter(|(_, histogram)| histogram.records() > 0).collect();
    let plot = Plot {
        records_max: series.iter().map(|(_, h)| h.records() as f64).fold(10.0, f64::max),
        ns_max: series.iter().map(|(_, h)| h.max_ns() as f64).fold(1e3, f64::max).log10(),
    };
    let mut svg = begin(860.0, 470.0, "latency by percentile");
    plot.axes(&mut svg);
    for (number, (name, histogram)) in series.iter().enumerate() {
        plot.line(&mut svg, number, name, histogram);
    }
    svg + "</svg>\n"
}

/// One bar a test: the share of the time that each stage works, and what is left.
pub fn stages(rows: &[SpeedRow]) -> String {
    const BAR: [f64; 4] = [150.0, 40.0, 560.0, 24.0];
    let [left, top, width, height] = BAR;
    let bottom = top + 36.0 * rows.len() as f64;
    let mut svg =
        begin(760.0, bottom + 70.0, "share of the time by stage; what is left is waiting");
    for (number, row) in rows.iter().enumerate() {
        let y = top + 36.0 * number as f64;
        add(
            &mut svg,
            format_args!(
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                left - 8.0,
                y + 16.0,
                escaped(&row.test)
            ),
        );
        add(
            &mut svg,
            format_args!(
                "<rect x=\"{left}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"none\" stroke=\"#999\"/>"
            ),
        );
        let mut x = left;
        for (stage, (name, share)) in row.stage_work_share.iter().enumerate() {
            let part = (width * share).min(left + width - x);
            add(
                &mut svg,
                format_args!(
                    "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{part:.1}\" height=\"{height}\" fill=\"{}\"><title>{name} {:.1} %</title></rect>",
                    COLOURS[stage],
                    share * 100.0
                ),
            );
            x += part;
        }
    }
    legend(&mut svg, 20.0, 90.0, bottom + 24.0);
    svg + "</svg>\n"
}

/// The stages' colours and names, side by side.
fn legend(svg: &mut String, left: f64, step: f64, y: f64) {
    for (stage, (kind, _)) in STAGES.iter().enumerate() {
        let x = left + step * stage as f64;
        let colour = COLOURS[stage];
        add(
            svg,
            format_args!(
                "<rect x=\"{x}\" y=\"{y}\" width=\"14\" height=\"14\" fill=\"{colour}\"/>"
            ),
        );
        add(svg, format_args!("<text x=\"{}\" y=\"{}\">{kind}</text>", x + 20.0, y + 12.0));
    }
}

/// What seats and drives did while tokens were made: a line for each seat and each drive.
pub fn timeline(events: &[Event]) -> String {
    const LANES: [f64; 3] = [90.0, 50.0, 1000.0];
    let [left, top, width] = LANES;
    let first_ns = events.iter().map(|event| event.span_ns().0).min().unwrap_or(0);
    let last_ns = events.iter().map(|event| event.span_ns().1).max().unwrap_or(1);
    let x = |ns: u64| left + width * (ns - first_ns) as f64 / (last_ns - first_ns).max(1) as f64;
    let mut lanes: BTreeMap<(bool, u32), f64> = BTreeMap::new();
    for event in events {
        lanes.insert(lane_of(event), 0.0);
    }
    for (number, y) in lanes.values_mut().enumerate() {
        *y = top + 40.0 * number as f64;
    }
    let bottom = top + 40.0 * lanes.len() as f64;
    let span_ms = (last_ns - first_ns) as f64 / 1e6;
    let mut svg = begin(
        1120.0,
        bottom + 60.0,
        &format!("{span_ms:.3} ms of decode: one token over seats and drives"),
    );
    for ((is_drive, number), y) in &lanes {
        let name = if *is_drive { "drive" } else { "seat" };
        add(
            &mut svg,
            format_args!(
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name} {number}</text>",
                left - 8.0,
                y + 18.0
            ),
        );
        add(
            &mut svg,
            format_args!("<path d=\"M{left} {}H{}\" stroke=\"#ddd\"/>", y + 28.0, left + width),
        );
    }
    for event in events {
        let (begin_ns, end_ns) = event.span_ns();
        let (y, (from, to)) = (lanes[&lane_of(event)], (x(begin_ns), x(end_ns)));
        let us = (end_ns - begin_ns) as f64 / 1e3;
        let (colour, title) = match event {
            Event::Handled { actor, .. } => (
                COLOURS[actor.stage as usize],
                format!("{} of {}, {us:.1} us", actor.stage, actor.layer),
            ),
            Event::Read { .. } => (DRIVE_COLOUR, format!("read, {us:.1} us")),
        };
        let width = (to - from).max(0.3);
        add(
            &mut svg,
            format_args!(
                "<rect x=\"{from:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"28\" fill=\"{colour}\" fill-opacity=\"0.85\"><title>{title}</title></rect>"
            ),
        );
    }
    legend(&mut svg, left, 100.0, bottom + 20.0);
    svg + "</svg>\n"
}

/// Drives below seats.
fn lane_of(event: &Event) -> (bool, u32) {
    match *event {
        Event::Handled { seat, .. } => (false, seat),
        Event::Read { copy, .. } => (true, copy),
    }
}

/// The events of the last whole token: from one embedding to the next.
pub fn last_token(events: &[Event]) -> &[Event] {
    let begins = |event: &Event| matches!(event, Event::Handled { actor, .. } if actor.stage == StageKind::Embed);
    let mut starts = (0..events.len()).rev().filter(|&index| begins(&events[index]));
    match (starts.next(), starts.next()) {
        (Some(end), Some(start)) => &events[start..end],
        _ => events,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_stages::ids::LayerId;
    use millstream_stages::kind::ActorId;
    use std::time::Duration;

    fn handled(stage: StageKind, begin_ns: u64) -> Event {
        let actor = ActorId { layer: LayerId(1), stage };
        Event::Handled { seat: 0, actor, sent_ns: 0, begin_ns, end_ns: begin_ns + 10 }
    }

    #[test]
    fn the_last_whole_token_is_between_two_embeddings() {
        use StageKind::{Embed, Head, Matmul};
        let stages = [Embed, Head, Embed, Matmul, Head, Embed];
        let events: Vec<Event> =
            stages.iter().enumerate().map(|(i, &stage)| handled(stage, 100 * i as u64)).collect();
        assert_eq!(last_token(&events), &events[2..5]);
        assert_eq!(last_token(&events[..2]), &events[..2]);
    }

    #[test]
    fn pictures_hold_every_series_and_event() {
        let mut histogram = LatencyHistogram::default();
        (1..2000).for_each(|us| histogram.record(Duration::from_micros(us)));
        let empty = ("empty".to_owned(), LatencyHistogram::default());
        let svg = percentiles(&[("a<b".to_owned(), histogram), empty]);
        assert_eq!(svg.matches("<polyline").count(), 1, "{svg}");
        assert!(svg.contains("a&lt;b") && svg.contains("99.9 %"), "{svg}");
        let read = Event::Read { copy: 1, begin_ns: 5, end_ns: 50 };
        let svg = timeline(&[handled(StageKind::Embed, 1), handled(StageKind::Head, 20), read]);
        assert_eq!(svg.matches("<title>").count(), 3, "{svg}");
        assert!(svg.contains(">drive 1<") && svg.contains(">seat 0<"), "{svg}");
        assert!(!svg.contains("NaN") && !timeline(&[]).contains("NaN"));
    }
}
