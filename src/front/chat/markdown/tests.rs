//! Rendered Markdown. In these examples, styles are written as tags.

use super::*;

/// Writes styles as tags.
fn tagged(pieces: &[StyledText]) -> String {
    let tag = |text: String, style: &Color| {
        let name = match style {
            Color::Bold => "b",
            Color::Dim => "dim",
            Color::Italic => "i",
            Color::Underline => "u",
            Color::Cyan => "cyan",
            Color::Red => "red",
            Color::Green => "green",
            Color::Yellow => "yellow",
            Color::Magenta => "magenta",
        };
        format!("<{name}>{text}</>")
    };
    pieces.iter().map(|piece| piece.styles.iter().fold(piece.text.clone(), tag)).collect()
}

/// Renders a text that arrives in pieces of `chars` characters.
fn rendered_in(text: &str, columns: usize, chars: usize) -> String {
    let mut markdown = Markdown::new(columns);
    let all: Vec<char> = text.chars().collect();
    let mut out = String::new();
    for piece in all.chunks(chars) {
        out += &tagged(&markdown.push(&piece.iter().collect::<String>()));
    }
    out + &tagged(&markdown.finish())
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

/// Regression: the marks stayed if the first character of an emphasis was not ASCII.
#[test]
fn emphasis_may_begin_with_any_character() {
    for (text, shown) in
        [("**ä**.", "<b>ä</>."), ("*Über* `ä`", "<i>Über</> <cyan>ä</>"), ("**中文**", "<b>中文</>")]
    {
        assert_eq!(rendered(text, 80), shown, "{text}");
    }
}

#[test]
fn fenced_code_has_the_colors_of_its_language() {
    for (text, shown) in [
        (
            "```rust,ignore\nlet a = 1;\n\n```\nb",
            "<dim>```rust,ignore</>\n<magenta>let</> a = <yellow>1</>;\n<cyan></>\n<dim>```</>\nb",
        ),
        ("```diff\n-a\n+b\n c\n```\nb", "<dim>```diff</>\n<red>-a</>\n<green>+b</>\n c\n<dim>```</>\nb"),
        ("```\nlet a\n```\nb", "<dim>```</>\n<cyan>let a</>\n<dim>```</>\nb"),
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
    let shown = "<dim>```rust</>\n<magenta>let</> a = **b**;   <dim>// a long line that is not wrapped</>\n<cyan></>\n<dim>```</>\nafter";
    assert_eq!(rendered(text, 20), shown);
}

/// Regression: the bars of `/context`, which are indented code, lost the spaces that align them.
#[test]
fn indented_code_keeps_its_spaces() {
    assert_eq!(
        rendered("Bars:\n\n    a   1 █\n    bc  2 ██\n\nend", 80),
        "Bars:\n\n<cyan>    a   1 █</>\n<cyan>    bc  2 ██</>\n\nend"
    );
    // A paragraph of a list item, and a continued paragraph, are no code.
    assert_eq!(rendered("- a\n\n    b  c", 80), "<cyan>• </>a\n\n<dim>    </>b c");
    assert_eq!(rendered("a\n    b  c", 80), "a\n<dim>    </>b c");
}

#[test]
fn tables_are_aligned_where_they_fit() {
    let text = "| a | count |\n|---|--:|\n| **long** | 1 |\n| x \\| y | 日本 |\n\nafter";
    let shown = "<b>a</>      <b>count</>\n<dim>─────  ─────</>\n<b>long</>   1\nx | y  日本\n\nafter";
    assert_eq!(rendered(text, 40), shown);
    // Regression: what followed a table and had no line end was shown before it.
    assert_eq!(rendered("| a |\n|---|\n| b |\n**c**", 40), "<b>a</>\n<dim>─</>\nb\n<b>c</>");
}

/// Regression: a table that is wider than the screen was shown as it was written, with lines that were broken anywhere.
#[test]
fn cells_of_a_wide_table_are_broken() {
    let text =
        "| file | what it **does** |\n|---|---|\n| a/long/name | reads `two words` |\n| b | 日本語日本語 |\n";
    let shown = "<b>file</>        <b>what it</>\n            <b><b>does</></>\n\
                 <dim>──────────  ──────────</>\n\
                 a/long/nam  reads <cyan>two</>\ne           <cyan>words</>\n\
                 <dim>──────────  ──────────</>\n\
                 b           日本語日本\n            語\n";
    assert_eq!(rendered(text, 22), shown);
    // If no word would fit, each cell is a line.
    let narrow = "<b>file</>:\na/long/name\n<b>what it </><b><b>does</></>:\nreads <cyan>two</>\n<cyan>words</>\n\n\
                  <b>file</>: b\n<b>what it </><b><b>does</></>:\n日本語日本語\n";
    assert_eq!(rendered(text, 13), narrow);
    // Regression: a line of a shell pipe lost its bar.
    assert_eq!(rendered("| grep **x**\n", 13), "| grep **x**\n");
}

#[test]
fn words_are_shown_as_they_arrive() {
    let mut markdown = Markdown::new(80);
    assert_eq!(tagged(&markdown.push("The first wor")), "The first");
    assert_eq!(tagged(&markdown.push("ds of **a ")), " words of");
    assert_eq!(tagged(&markdown.push("reply** are")), " <b>a</> <b>reply</>");
    assert_eq!(tagged(&markdown.push("\n")), " are\n");
}

#[test]
fn a_list_may_have_levels() {
    assert_eq!(rendered("- a\n  - b\n", 80), "<cyan>• </>a\n<cyan>  • </>b\n");
    assert_eq!(rendered("\n\na\n\n---\n", 5), "\n\na\n\n<dim>─────</>\n");
}

#[test]
fn a_line_that_is_too_long_is_shown_as_it_is() {
    let long = "**[`".repeat(5_000);
    assert_eq!(rendered_in(&long, 80, 1_000_000), long);
}
