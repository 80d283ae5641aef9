//! The terminal output for Markdown. In these examples, styles are written as HTML tags.

use super::*;

/// Renders a text that arrives in pieces of `chars` characters.
fn rendered_in(text: &str, columns: usize, chars: usize) -> String {
    let mut markdown = Markdown::new(Style::Colors, columns);
    let all: Vec<char> = text.chars().collect();
    let mut out = String::new();
    for piece in all.chunks(chars) {
        out += &markdown.push(&piece.iter().collect::<String>());
    }
    out += &markdown.finish();
    for (code, name) in [("1", "b"), ("2", "dim"), ("3", "i"), ("4", "u"), ("36", "cyan")] {
        out = out.replace(&format!("\x1b[{code}m"), &format!("<{name}>"));
    }
    out.replace("\x1b[0m", "</>")
}

/// Renders a text, and checks that the result does not depend on how it is split.
fn rendered(text: &str, columns: usize) -> String {
    let whole = rendered_in(text, columns, 100_000);
    for chars in [1, 2, 3, 7] {
        assert_eq!(rendered_in(text, columns, chars), whole, "in pieces of {chars}");
    }
    whole
}

#[test]
fn emphasis_code_and_links_are_styled() {
    for (text, shown) in [
        ("a **b** c", "a <b>b</> c"),
        ("*a* and _b_", "<i>a</> and <i>b</>"),
        ("**a *b* c**", "<b>a</> <i><b>b</></> <b>c</>"),
        ("run `cargo test`, now", "run <cyan>cargo</> <cyan>test</>, now"),
        ("``a `b` c``", "<cyan>a</> <cyan>`b`</> <cyan>c</>"),
        ("see [the docs](https://x.example)", "see <u>the</> <u>docs</> <dim>(https://x.example)</>"),
        ("# A title", "<u><b>A</></> <u><b>title</></>"),
        ("> said", "<dim>│ </><dim>said</>"),
    ] {
        assert_eq!(rendered(text, 80), shown, "{text}");
    }
}

#[test]
fn marks_that_mean_nothing_stay() {
    for text in [
        "2 * 3 * 4",
        "a_name_here",
        "**not closed",
        "a `tick",
        "[1] and [2]",
        "5 ~ 6",
        "x *",
        "a\\b",
        "1.5 is",
    ] {
        assert_eq!(rendered(text, 80), text);
    }
    assert_eq!(rendered("\\*plain\\*", 80), "*plain*");
}

#[test]
fn lines_are_wrapped_at_words_by_their_width() {
    assert_eq!(rendered("one two three four", 9), "one two\nthree\nfour");
    assert_eq!(rendered("- one two three\n- four", 9), "<cyan>• </>one two\n  three\n<cyan>• </>four");
    assert_eq!(rendered("12. one two three", 9), "<cyan>12. </>one\n    two\n    three");
    // Each of these characters takes two columns.
    assert_eq!(rendered("日本語 日本語", 9), "日本語\n日本語");
    assert_eq!(
        rendered("a https://a.very.long.example/address b", 9),
        "a\nhttps://a.very.long.example/address\nb"
    );
}

#[test]
fn code_is_shown_as_it_is() {
    let text = "```rust\nlet a = **b**;   // a long line that is not wrapped\n\n```\nafter";
    let shown = "<dim>```rust</>\n<cyan>let a = **b**;   // a long line that is not wrapped</>\n<cyan></>\n<dim>```</>\nafter";
    assert_eq!(rendered(text, 20), shown);
}

#[test]
fn tables_are_aligned_where_they_fit() {
    let text = "| a | count |\n|---|--:|\n| **long** | 1 |\n| x \\| y | 日本 |\n\nafter";
    let shown = "<b>a</>      <b>count</>\n<dim>─────  ─────</>\n<b>long</>   1\nx | y  日本\n\nafter";
    assert_eq!(rendered(text, 40), shown);
    assert_eq!(rendered("| a | count |\n|---|---|\n| b | c |\n", 9), "| a | count |\n|---|---|\n| b | c |\n");
}

#[test]
fn words_are_shown_as_they_arrive() {
    let mut markdown = Markdown::new(Style::Colors, 80);
    assert_eq!(markdown.push("The first wor"), "The first");
    assert_eq!(markdown.push("ds of **a "), " words of");
    assert_eq!(markdown.push("reply** are"), " \u{1b}[1ma\u{1b}[0m \u{1b}[1mreply\u{1b}[0m");
    assert_eq!(markdown.push("\n"), " are\n");
}

#[test]
fn a_list_may_have_levels() {
    assert_eq!(rendered("- a\n  - b\n", 80), "<cyan>• </>a\n<cyan>  • </>b\n");
    assert_eq!(rendered("\n\na\n\n---\n", 5), "\n\na\n\n<dim>─────</>\n");
}

#[test]
fn a_line_that_is_too_long_is_shown_as_it_is() {
    let long = "**[`".repeat(5_000);
    let mut markdown = Markdown::new(Style::Colors, 80);
    let mut out = markdown.push(&long);
    out += &markdown.finish();
    assert_eq!(out, long);
}
