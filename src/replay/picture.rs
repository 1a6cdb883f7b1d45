//! The hits of every policy over the share of experts that have a slot, as an SVG.

use super::Report;
use std::fmt::Write;

/// Size of the picture and of its plot, in its own units.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const PLOT: [f64; 4] = [60.0, 20.0, 520.0, 350.0];

/// Colours of the lines: distinguishable for colour-blind readers.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const OPTIMUM_COLOUR: &str = "#000000";

/// Draws a report. Sizes are put in order of their share.
pub fn picture(report: &Report) -> String {
    let [left, top, width, height] = PLOT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    for tenth in (0..=10).step_by(2) {
        let share = f64::from(tenth) / 10.0;
        let (x, y) = place(share, share);
        let (right, bottom) = (left + width, top + height);
        svg += &format!(
            "<path d=\"M{left} {y:.1}H{right}M{x:.1} {top}V{bottom}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
            left - 6.0,
            y + 4.0,
            tenth * 10,
            bottom + 16.0,
            tenth * 10
        );
    }
    let middle = left + width / 2.0;
    svg += &format!(
        "<text x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">% of the experts that have a slot</text>\n\
         <text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\">% of decode uses that hit</text>\n",
        HEIGHT - 12.0,
        top + height / 2.0
    );
    for (number, (name, colour, points)) in lines(report).iter().enumerate() {
        let y = top + 16.0 + 18.0 * number as f64;
        let x = left + width + 12.0;
        svg += &format!(
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <path d=\"M{x} {y}h20\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\">{name}</text>\n",
            x + 26.0,
            y + 4.0
        );
    }
    svg + "</svg>\n"
}

/// Where a share of the experts (across) and a share of hits (up) lie.
fn place(across: f64, up: f64) -> (f64, f64) {
    let [left, top, width, height] = PLOT;
    (left + width * across, top + height * (1.0 - up))
}

/// Name, colour and points of every line, the optimum first.
fn lines(report: &Report) -> Vec<(&str, &str, String)> {
    let mut rows: Vec<_> = report.rows.iter().collect();
    rows.sort_by(|a, b| a.slot_share.total_cmp(&b.slot_share));
    let points = |hit_share: &dyn Fn(usize) -> f64| {
        let mut points = String::new();
        for (index, row) in rows.iter().enumerate() {
            let (x, y) = place(row.slot_share, hit_share(index));
            write!(points, "{x:.1},{y:.1} ").expect("a String takes everything");
        }
        points
    };
    let optimum = points(&|index| rows[index].optimum.decode_share());
    let mut lines = vec![("Belady", OPTIMUM_COLOUR, optimum)];
    let policies = rows.first().map_or(&[][..], |row| &row.policies);
    for (number, policy) in policies.iter().enumerate() {
        let points = points(&|index| rows[index].policies[number].decode_hit_share);
        lines.push((policy.policy, COLOURS[number % COLOURS.len()], points));
    }
    lines
}
