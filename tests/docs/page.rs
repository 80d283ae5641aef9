//! A page of the guide taken apart: its fenced blocks with their info strings, its headings, its links.

use std::collections::BTreeMap;

/// A fenced block.
pub struct Block {
    /// The line of the page that its text begins at, from 1.
    pub line: usize,
    /// The first word of the info string: what a reader's highlighter goes by.
    pub language: String,
    /// The other words: `name=value`, or a name alone.
    pub says: BTreeMap<String, String>,
    pub text: String,
}

impl Block {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.says.get(name).map(String::as_str)
    }
}

/// All fenced blocks of a page, in their order.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut fence: Option<String> = None;
    for (at, line) in page.lines().enumerate() {
        let ticks = line.chars().take_while(|c| *c == '`').count();
        match &fence {
            Some(open) if line == open => fence = None,
            Some(_) => {
                let block = blocks.last_mut().expect("an open fence has its block");
                block.text.push_str(line);
                block.text.push('\n');
            }
            None if ticks >= 3 => {
                fence = Some("`".repeat(ticks));
                let mut words = line[ticks..].split_whitespace();
                let language = words.next().unwrap_or_default().to_owned();
                let says = words.map(|word| {
                    let (name, value) = word.split_once('=').unwrap_or((word, ""));
                    (name.to_owned(), value.to_owned())
                });
                blocks.push(Block { line: at + 2, language, says: says.collect(), text: String::new() });
            }
            None => {}
        }
    }
    assert!(fence.is_none(), "a block has no end");
    blocks
}

/// The page without its blocks.
fn prose(page: &str) -> String {
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

/// The targets of a page's links, but for those to other sites.
pub fn links(page: &str) -> Vec<String> {
    let prose = prose(page);
    let behind = prose.split("](").skip(1);
    let targets = behind.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    targets.filter(|target| !target.contains("://")).map(str::to_owned).collect()
}
