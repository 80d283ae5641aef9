//! Tool names that all providers accept: letters, digits, `_` and `-`, at most 64 characters, each unique.
//! Pure.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

/// Prefix of all MCP tool names, as in Claude Code.
pub const PREFIX: &str = "mcp__";

/// Maximum characters of a full name: the common limit of OpenAI, Anthropic and Gemini.
pub const NAME_CHARS_MAX: usize = 64;

/// Maximum characters of the server's part.
const SERVER_CHARS_MAX: usize = 24;

/// Characters of the digest suffix that makes colliding names unique.
const MARK_CHARS: usize = 6;

/// The servers' parts of the tool names, in order, each unique.
pub fn server_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut taken = BTreeSet::new();
    // A double underscore separates the server's part from the tool's: a rule for one server must not cover another.
    let part = |name: &str| {
        let cleaned = clean(name);
        let words: Vec<&str> = cleaned.split('_').filter(|word| !word.is_empty()).collect();
        let part = if words.is_empty() { "server".to_owned() } else { words.join("_") };
        // Nor may it take the name of another one that is missing here.
        if part == cleaned { part } else { marked(&part, name, 0, SERVER_CHARS_MAX) }
    };
    names.into_iter().map(|name| unique(name, &part(name), SERVER_CHARS_MAX, &mut taken)).collect()
}

/// The full names of one server's tools, in order, each unique.
pub fn tool_names<'a>(server: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let before = format!("{PREFIX}{server}__");
    let room = NAME_CHARS_MAX - before.len();
    let mut taken = BTreeSet::new();
    names
        .into_iter()
        .map(|name| format!("{before}{}", unique(name, &clean(name), room, &mut taken)))
        .collect()
}

/// The tool's part of a full name of this server's tool.
pub fn tool_part<'n>(server: &str, name: &'n str) -> Option<&'n str> {
    let part = name.strip_prefix(PREFIX)?.strip_prefix(server)?.strip_prefix("__")?;
    (!part.is_empty() && clean(part) == part).then_some(part)
}

fn clean(name: &str) -> String {
    let cleaned: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    if cleaned.is_empty() { "_".to_owned() } else { cleaned }
}

/// A unique name of at most `room` characters. The suffix is a digest of the original name, so that it
/// depends on the order of the names as little as possible.
fn unique(name: &str, cleaned: &str, room: usize, taken: &mut BTreeSet<String>) -> String {
    if cleaned.len() <= room && taken.insert(cleaned.to_owned()) {
        return cleaned.to_owned();
    }
    for round in 0_u32.. {
        let marked = marked(cleaned, name, round, room);
        if taken.insert(marked.clone()) {
            return marked;
        }
    }
    unreachable!("there are more marks than tools of a server")
}

fn marked(cleaned: &str, name: &str, round: u32, room: usize) -> String {
    let head = cleaned[..cleaned.len().min(room - MARK_CHARS - 1)].trim_end_matches('_');
    format!("{head}_{:.MARK_CHARS$x}", Sha256::digest(format!("{round}{name}")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn valid_names_stay_unchanged() {
        let servers = server_names(["github", "my server", "my.server", "a__b"]);
        assert_eq!(servers[..2], ["github", "my_server"]);
        assert!(servers[3].starts_with("a_b_") && servers[3].len() == 10, "{servers:?}");
        assert!(servers[2].starts_with("my_server_") && servers[2].len() == 16, "{servers:?}");
        let tools = tool_names("github", ["search", "issues.list", "issues_list"]);
        assert_eq!(tools[..2], ["mcp__github__search", "mcp__github__issues_list"]);
        assert!(tools[2].starts_with("mcp__github__issues_list_"), "{tools:?}");
    }

    proptest! {
        /// The rule `mcp__tracker__*` covered the tools of a repository's servers `tracker___x` and `tracker_`, and that of a
        /// server whose name was cut at an underscore covered it as well.
        #[test]
        fn a_rule_for_one_server_covers_no_other(
            servers in prop::collection::btree_set("(a{1,16}|b)?[_. ]{0,3}[ab]{0,9}", 2..6), tool in "[_a]{0,4}"
        ) {
            let labels = server_names(servers.iter().map(String::as_str));
            for (label, other) in labels.iter().flat_map(|one| labels.iter().map(move |other| (one, other))) {
                let name = tool_names(other, [tool.as_str()]).remove(0);
                prop_assert_eq!(name.starts_with(&format!("mcp__{label}__")), label == other, "{:?}", servers);
            }
        }

        /// Holds for arbitrary server and tool names.
        #[test]
        fn names_are_valid_and_unique(
            server in ".{0,40}", names in prop::collection::vec(".{0,80}", 0..20)
        ) {
            let servers = server_names([server.as_str(), server.as_str()]);
            prop_assert_ne!(&servers[0], &servers[1]);
            for server in &servers {
                let named = tool_names(server, names.iter().map(String::as_str));
                let all: BTreeSet<&String> = named.iter().collect();
                prop_assert_eq!(all.len(), names.len());
                for name in named {
                    prop_assert!(name.len() <= NAME_CHARS_MAX, "{}", name);
                    prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'));
                }
            }
        }
    }
}
