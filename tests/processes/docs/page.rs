//! Parses a page of the guide into its fenced blocks with their info strings.

use std::collections::BTreeMap;

/// A fenced block.
pub struct Block {
    /// The line of the page at which the text begins, from 1.
    pub line: usize,
    /// The first word of the info string, used for syntax highlighting.
    pub language: String,
    /// The other words: `name=value`, or a name without a value.
    pub says: BTreeMap<String, String>,
    pub text: String,
}

impl Block {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.says.get(name).map(String::as_str)
    }
}

/// All fenced blocks of a page, in order.
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
