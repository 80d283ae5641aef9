//! Lists of names with descriptions that are part of a tool's description. Such a list is sent with every request, so
//! its size is limited by the model's window. Pure.

use super::truncate;

/// Share of a window for one list, in percent. Claude Code (CHANGELOG 2.1.32) and Codex use the same share for their
/// lists of skills. Of the 4,296 skills of 15 public repositories, whose descriptions have a median of 256 bytes, 50
/// fit into a window of 200,000 tokens without truncation, 25 into one of 128,000, and 200 into one of a million.
const WINDOW_PERCENT: u64 = 2;
/// Approximate bytes per token; it only scales the list.
const TOKEN_BYTES: u64 = 4;
/// Limits of a list's size in bytes: in the smallest and the largest window.
const LIST_BYTES_MIN: u64 = 6 * 1024;
const LIST_BYTES_MAX: u64 = 64 * 1024;
/// Maximum bytes of a description: the Agent Skills specification allows 1,024 characters.
pub const ABOUT_BYTES_MAX: usize = 1_024;
/// Minimum bytes of a truncated description; a shorter one doesn't explain the item.
const ABOUT_BYTES_MIN: usize = 48;

/// An entry of a list.
#[derive(Clone, Copy, Debug)]
pub struct ListedItem<'a> {
    pub name: &'a str,
    /// The purpose of the item, on one line.
    pub about: &'a str,
}

/// Maximum size in bytes of a list in a window of `window` tokens.
pub fn bytes_in(window: u64) -> usize {
    let bytes = window.saturating_mul(TOKEN_BYTES) / 100 * WINDOW_PERCENT;
    usize::try_from(bytes.clamp(LIST_BYTES_MIN, LIST_BYTES_MAX)).unwrap_or(usize::MAX)
}

/// Formats the items as one line each, preceded by a newline. If the descriptions don't all fit, the longest are
/// shortened first; if that is not enough, the last items are only named.
pub fn lines(items: &[ListedItem<'_>], bytes_max: usize) -> String {
    let most = about_max(items, bytes_max);
    let mut list = String::new();
    for (at, item) in items.iter().enumerate() {
        let line = line(*item, most);
        if list.len() + line.len() >= bytes_max {
            let names: Vec<&str> = items[at..].iter().map(|item| item.name).collect();
            let names = truncate::line(&names.join(", "), bytes_max);
            list.push_str(&format!("\n{WITHOUT_ROOM} what they are for: {names}"));
            break;
        }
        list.push('\n');
        list.push_str(&line);
    }
    list
}

/// Prefix of the last line of a list if not everything fits.
pub const WITHOUT_ROOM: &str = "and, without room for";

/// Formats an entry with a description of at most `about_max` bytes.
pub fn line(item: ListedItem<'_>, about_max: usize) -> String {
    let about = item.about.split_whitespace().collect::<Vec<_>>().join(" ");
    let cut = match about.len() > about_max {
        true => format!("{}…", about[..about.floor_char_boundary(about_max)].trim_end()),
        false => about,
    };
    format!("{}{cut}", head(item.name))
}

/// Returns the start of an entry, which identifies the item.
pub fn head(name: &str) -> String {
    format!("- {name}: ")
}

/// Returns the largest description limit at which all items fit.
fn about_max(items: &[ListedItem<'_>], bytes_max: usize) -> usize {
    let fits = |most: usize| {
        let bytes = items.iter().map(|item| line(*item, most).len() + 1);
        bytes.sum::<usize>() < bytes_max
    };
    let (mut least, mut most) = (ABOUT_BYTES_MIN, ABOUT_BYTES_MAX);
    while least < most {
        let middle = (least + most).div_ceil(2);
        if fits(middle) { least = middle } else { most = middle - 1 }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(items: &[(&str, &str)], bytes_max: usize) -> String {
        let items: Vec<_> = items.iter().map(|(name, about)| ListedItem { name, about }).collect();
        lines(&items, bytes_max)
    }

    #[test]
    fn descriptions_are_whole_where_there_is_room() {
        let long = "word ".repeat(190);
        let list = listed(&[("pdf", "Fills\n  forms."), ("xlsx", &long)], 6 * 1024);
        assert_eq!(list, format!("\n- pdf: Fills forms.\n- xlsx: {}", long.trim_end()));
    }

    /// Regression test: eleven of 27 published skills had no description, because the first sixteen took all the
    /// space, and each description was truncated after 400 bytes.
    #[test]
    fn without_room_the_longest_are_shortened_first() {
        let long = "word ".repeat(200);
        let list = listed(&[("a", &long), ("b", "Short."), ("c", &long), ("d", "Also short.")], 1_000);
        assert!(list.len() <= 1_000 && list.len() > 900, "{}", list.len());
        assert!(list.contains("\n- b: Short.\n") && list.ends_with("\n- d: Also short."), "{list}");
        assert_eq!(list.matches('…').count(), 2, "{list}");
    }

    #[test]
    fn the_last_are_only_named_where_even_that_is_too_much() {
        let names: Vec<String> = (0..500).map(|number| format!("s{number}")).collect();
        let about = "long ".repeat(200);
        let items: Vec<_> = names.iter().map(|name| ListedItem { name, about: &about }).collect();
        let list = lines(&items, 6 * 1024);
        assert!(list.len() < 2 * 6 * 1024 && list.contains(WITHOUT_ROOM) && list.contains("s499"), "{list}");
    }

    #[test]
    fn the_room_is_a_share_of_the_window() {
        let rooms = [0, 8_000, 200_000, 1_000_000, u64::MAX].map(bytes_in);
        assert_eq!(rooms, [6_144, 6_144, 16_000, 65_536, 65_536]);
    }
}
