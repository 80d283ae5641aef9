//! Two small plots as one SVG: retention by kind of each way, and retention over the number of compactions. Its
//! colours are seen on light and on dark ground alike.

use std::fmt::Write;

use crate::bench::plant::Kind;
use crate::measure::{At, COMPACTIONS, Grid, Way};

const BUDGET: u64 = 4_000;
const INK: &str = "#808890";
const COLOURS: [&str; 4] = ["#9aa5b1", "#d08c2e", "#2f81d6", "#35a37a"];
const WIDTH: u32 = 860;
const HEIGHT: u32 = 620;
/// The height of both plots' areas, and where they begin.
const AREA: f64 = 200.0;
const BARS_TOP: f64 = 70.0;
const LINES_TOP: f64 = 370.0;
const LEFT: f64 = 48.0;

pub fn svg(grid: &Grid) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"{INK}\">\n"
    );
    text(
        &mut svg,
        LEFT,
        24.0,
        "start",
        "Planted facts that are kept, in per cent, at 4,000 tokens after ten compactions",
    );
    bars(&mut svg, grid);
    text(
        &mut svg,
        LEFT,
        LINES_TOP - 26.0,
        "start",
        "All kinds together, over the number of compactions, at 4,000 tokens",
    );
    lines(&mut svg, grid);
    legend(&mut svg);
    svg.push_str("</svg>\n");
    svg
}

fn bars(svg: &mut String, grid: &Grid) {
    axis(svg, BARS_TOP, f64::from(WIDTH) - 16.0);
    let group = (f64::from(WIDTH) - LEFT - 16.0) / Kind::ALL.len() as f64;
    let bar = group * 0.8 / Way::ALL.len() as f64;
    for (at, kind) in Kind::ALL.into_iter().enumerate() {
        let left = LEFT + at as f64 * group + group * 0.1;
        text(svg, left + group * 0.4, BARS_TOP + AREA + 16.0, "middle", kind.title());
        for (nth, way) in Way::ALL.into_iter().enumerate() {
            let score = grid.get(&At { way, compactions: 10, budget: BUDGET });
            let Some(percent) = score.and_then(|score| score.kind(kind)) else { continue };
            // What is nothing is seen as a line.
            let height = (percent / 100.0 * AREA).max(1.0);
            let x = left + nth as f64 * bar;
            let y = BARS_TOP + AREA - height;
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{}\"><title>{}, {}: {percent:.0} %</title></rect>",
                bar - 1.0,
                COLOURS[nth],
                way.title(),
                kind.title()
            );
        }
    }
}

fn lines(svg: &mut String, grid: &Grid) {
    let right = 420.0;
    axis(svg, LINES_TOP, right);
    let x = |compactions: usize| LEFT + 30.0 + (compactions as f64 - 1.0) / 9.0 * (right - LEFT - 60.0);
    for compactions in COMPACTIONS {
        text(svg, x(compactions), LINES_TOP + AREA + 16.0, "middle", &compactions.to_string());
    }
    for (nth, way) in Way::ALL.into_iter().enumerate() {
        let points: Vec<(f64, f64)> = COMPACTIONS
            .into_iter()
            .filter_map(|compactions| {
                let percent = grid.get(&At { way, compactions, budget: BUDGET })?.all().percent()?;
                Some((x(compactions), LINES_TOP + AREA - percent / 100.0 * AREA))
            })
            .collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
            path.join(" "),
            COLOURS[nth]
        );
        for (x, y) in points {
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{}\"/>", COLOURS[nth]);
        }
    }
}

fn axis(svg: &mut String, top: f64, right: f64) {
    for percent in [0, 25, 50, 75, 100] {
        let y = top + AREA - f64::from(percent) / 100.0 * AREA;
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{INK}\" stroke-opacity=\"0.35\"/>"
        );
        text(svg, LEFT - 6.0, y + 4.0, "end", &percent.to_string());
    }
}

fn legend(svg: &mut String) {
    for (nth, way) in Way::ALL.into_iter().enumerate() {
        let y = LINES_TOP + 40.0 + nth as f64 * 26.0;
        let _ = writeln!(
            svg,
            "<rect x=\"470\" y=\"{:.1}\" width=\"14\" height=\"14\" fill=\"{}\"/>",
            y - 11.0,
            COLOURS[nth]
        );
        text(svg, 492.0, y, "start", way.title());
    }
    let y = LINES_TOP + 40.0 + Way::ALL.len() as f64 * 26.0;
    text(svg, 470.0, y, "start", "Summaries of frontier models: not measured (no corpus)");
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}
