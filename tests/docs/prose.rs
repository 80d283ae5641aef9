//! A page without its blocks: its prose and its headings.

/// The page without its blocks.
pub fn prose(page: &str) -> String {
    let mut fence: Option<String> = None;
    let mut prose = String::new();
    for line in page.lines() {
        let ticks = line.chars().take_while(|c| *c == '`').count();
        match &fence {
            Some(open) if line == open => fence = None,
            Some(_) => {}
            None if ticks >= 3 => fence = Some("`".repeat(ticks)),
            None => {
                prose.push_str(line);
                prose.push('\n');
            }
        }
    }
    prose
}

/// The names by which links reach the headings of a page, as GitHub makes them.
pub fn anchors(page: &str) -> Vec<String> {
    let headings = prose(page);
    let headings = headings.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}
