//! A bar chart for a terminal. Pure.

/// One bar with its label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    pub label: String,
    pub value: u64,
}

/// Draws one bar per row, the longest `width` characters long; `words` formats a value.
pub fn bars(bars: &[Bar], width: usize, words: impl Fn(u64) -> String) -> Vec<String> {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let most = bars.iter().map(|bar| bar.value).max().unwrap_or(0).max(1);
    let labels = bars.iter().map(|bar| bar.label.chars().count()).max().unwrap_or(0);
    let row = |bar: &Bar| {
        let eighths = (bar.value as f64 / most as f64 * width as f64 * 8.0).round() as usize;
        // A value above zero is always visible.
        let eighths = if bar.value > 0 { eighths.max(1) } else { 0 };
        let drawn = format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8]);
        format!("{:labels$}  {drawn} {}", bar.label, words(bar.value))
    };
    bars.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_fills_the_width_and_nothing_is_invisible() {
        let rows = [("before", 8_000), ("after", 1), ("none", 0)];
        let rows = rows.map(|(label, value)| Bar { label: label.to_owned(), value });
        let drawn = bars(&rows, 4, |value| value.to_string());
        assert_eq!(drawn, ["before  ████ 8000", "after   ▏ 1", "none     0"]);
        assert!(bars(&[], 4, |value| value.to_string()).is_empty());
    }
}
