//! The report: Markdown with two plots.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use crate::Run;
use crate::long::{self, Sample};

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 240.0;
const MARGIN: f64 = 40.0;

/// Writes `report.md` and its plots into a directory.
pub fn write(to: &Path, samples: &[Sample], runs: &[Run]) -> anyhow::Result<()> {
    let mut text = String::from("# Soak\n\n| what | amount | time | failures |\n| --- | --- | --- | --- |\n");
    let mut sums: BTreeMap<&str, (u64, Duration, usize)> = BTreeMap::new();
    for run in runs {
        let (amount, time, failures) = sums.entry(run.what).or_default();
        *amount += run.amount;
        *time += run.time;
        *failures += run.failures.len();
    }
    for (what, (amount, time, failures)) in sums {
        writeln!(text, "| {what} | {amount} | {:.0} s | {failures} |", time.as_secs_f64())?;
    }
    text.push('\n');
    if !samples.is_empty() {
        text += &session(to, samples)?;
    }
    for Run { how, amount, failures, what, .. } in runs {
        let result = if failures.is_empty() { "ok" } else { "FAILED" };
        writeln!(text, "- {result}: {amount} {what}: `{how}`")?;
        for failure in failures {
            writeln!(text, "\n```text\n{failure}\n```\n")?;
        }
    }
    std::fs::write(to.join("report.md"), text)?;
    Ok(())
}

/// The figures and the plots of the one session.
fn session(to: &Path, samples: &[Sample]) -> anyhow::Result<String> {
    let ms = |sample: &Sample| sample.latency.as_secs_f64() * 1000.0;
    let (first, last) = long::ends(samples, |sample| sample.megabytes);
    let (fast, slow) = long::ends(samples, ms);
    let mut text = format!(
        "In the one session, the daemon's memory was {first:.1} MB after the warm-up and {last:.1} MB at the end, and a \
         prompt took {fast:.0} and {slow:.0} ms (medians).\n\n",
    );
    for (file, title, values) in [
        ("memory.svg", "Megabytes of the daemon, by prompts", samples.iter().map(|s| s.megabytes).collect()),
        ("latency.svg", "Milliseconds from a prompt to its answer", samples.iter().map(ms).collect()),
    ] {
        std::fs::write(to.join(file), plot(title, values))?;
        writeln!(text, "![{title}]({file})\n")?;
    }
    Ok(text)
}

/// A line chart.
fn plot(title: &str, values: Vec<f64>) -> String {
    let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let bottom = HEIGHT - MARGIN;
    let point = |(at, value): (usize, &f64)| {
        let x = MARGIN + (WIDTH - 2.0 * MARGIN) * at as f64 / values.len() as f64;
        format!("{x:.1},{:.1}", bottom - (HEIGHT - 2.0 * MARGIN) * value / most)
    };
    let path = values.iter().enumerate().map(point).collect::<Vec<_>>().join(" ");
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' font-family='sans-serif' font-size='12'>\
         <rect width='{WIDTH}' height='{HEIGHT}' fill='white'/><text x='{MARGIN}' y='20'>{title}</text>\
         <text x='4' y='{MARGIN}'>{most:.0}</text><text x='4' y='{bottom}'>0</text>\
         <polyline points='{path}' fill='none' stroke='steelblue'/></svg>\n"
    )
}
