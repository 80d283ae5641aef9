//! A page without its fenced blocks: prose and headings.

/// The page without its fenced blocks.
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

/// The anchors of a page's headings, as GitHub generates them.
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
