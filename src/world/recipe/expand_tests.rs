//! Examples of the placeholder rules of other agents.

use super::*;

type Expanded = Result<(Rendered, bool), TooLong>;

fn done(text: &str, takes_input: bool) -> Expanded {
    Ok((Rendered::Done(RenderedPrompt { text: text.to_owned(), warnings: Vec::new() }), takes_input))
}

fn needs(line: &str, takes_input: bool) -> Expanded {
    Ok((Rendered::Needs(vec![ShellCall::Line(line.to_owned())]), takes_input))
}

fn knows(line: &str, output: &str) -> ShellOutputs {
    ShellOutputs::from([(ShellCall::Line(line.to_owned()), output.to_owned())])
}

fn claude(body: &str, free: &str, outputs: &ShellOutputs) -> Expanded {
    render_claude(body, ExpandWith { free, ..ExpandWith::default() }, outputs)
}

/// Each row is a body, the typed arguments, and the resulting text.
#[test]
fn arguments_are_expanded_as_claude_code_documents_it() {
    let none = ShellOutputs::new();
    for (body, free, wanted) in [
        ("Fix $ARGUMENTS!", "issue 7", "Fix issue 7!"),
        ("$1 and $2.", "a 'b c'", "a and b c."),
        ("$2 before $1", "a b", "b before a"),
        // `$0` switches to counting from 0.
        ("$0, $1", "a b", "a, b"),
        ("$ARGUMENTS[0]: $ARGUMENTS[1], $1", "one \"two words\"", "one: two words, two words"),
        ("$ARGUMENTS[x] $ARGUMENTS[", "a", "a[x] a["),
        // An escaped placeholder is kept without its backslash.
        (r"\$1 is $1, \$ARGUMENTS is all", "a", "$1 is a, $ARGUMENTS is all"),
        (r"C:\dir \n", "a", r"C:\dir \n"),
    ] {
        let rendered = claude(body, free, &none).map(|(rendered, _)| rendered);
        assert_eq!(rendered, done(wanted, false).map(|(rendered, _)| rendered), "{body}");
    }
    assert_eq!(claude("Costs $10 or $x {{.a}}", "a", &none), done("Costs $10 or $x {{.a}}", false));
}

/// Regression: a placeholder without an argument was removed, which made code in prompts invalid:
/// `awk '{print $4}'` became `awk '{print }'`. Claude Code keeps it since 2.1.210.
#[test]
fn a_placeholder_that_nothing_was_typed_for_stays() {
    let none = ShellOutputs::new();
    for (body, free) in [
        (r#"df | awk '{print "Free: " $4}'"#, ""),
        ("awk '{print $3}' $2", "log"),
        ("$ARGUMENTS[4] $0 of none", ""),
    ] {
        assert_eq!(claude(body, free, &none), done(body, false), "{body}");
    }
}

#[test]
fn named_arguments_are_the_words_in_order() {
    let names = ["issue".to_owned(), "target-branch".to_owned()];
    let with = |free| ExpandWith { free, names: &names, ..ExpandWith::default() };
    let none = ShellOutputs::new();
    let body = "Fix $issue on $target-branch, not $issues.";
    assert_eq!(render_claude(body, with("7 main"), &none), done("Fix 7 on main, not $issues.", true));
    assert_eq!(render_claude("Fix $issue", with(""), &none), done("Fix $issue", false));
}

#[test]
fn variables_are_replaced_where_they_are_known() {
    let variables = [("CLAUDE_SKILL_DIR", "/s/pdf".to_owned())];
    let with = ExpandWith { variables: &variables, ..ExpandWith::default() };
    let body = "Run !`${CLAUDE_SKILL_DIR}/scan.sh` in ${HOME}, ${CLAUDE_SKILL_DIR}.";
    let known = knows("/s/pdf/scan.sh", "ok");
    assert_eq!(render_claude(body, with, &known), done("Run ok in ${HOME}, /s/pdf.", false));
}

#[test]
fn a_claude_command_needs_its_shell_output() {
    assert_eq!(claude("Now: !`git status`", "", &ShellOutputs::new()), needs("git status", false));
    let known = knows("git log $x main", "abc\n");
    assert_eq!(claude("!`git log $x $1`.", "main", &known), done("abc.", true));
    assert_eq!(claude("Wow! `code`", "", &known), done("Wow! `code`", false));
}

/// The arguments that a model gave to a skill were shell text of its commands: `7; touch x` ran `touch`, outside of the
/// sandbox and unasked.
#[test]
fn arguments_of_the_model_are_quoted_in_commands_and_nowhere_else() {
    let names = ["issue".to_owned()];
    let none = ShellOutputs::new();
    let with = |free| ExpandWith { free, names: &names, quotes: true, ..ExpandWith::default() };
    for (body, free, line) in [
        ("!`gh issue view $ARGUMENTS`", "7 --comments", "gh issue view '7' '--comments'"),
        ("!`echo $ARGUMENTS`", "7; touch x", "echo '7;' 'touch' 'x'"),
        ("!`gh issue view $1`", "'7; $(touch x)'", "gh issue view '7; $(touch x)'"),
        ("!`gh pr create --title \"$ARGUMENTS\"`", "its $(x)", r#"gh pr create --title ""'its $(x)'"""#),
        ("```!\ngrep '$issue' a\n```", "it's", r"grep 'it'\''s' a"),
        ("!`$ARGUMENTS[0] a`", "touch", "'touch' a"),
    ] {
        assert_eq!(render_claude(body, with(free), &none), needs(line, true), "{body}");
    }
    assert_eq!(render_claude("Fix $ARGUMENTS.", with("a; b"), &none), done("Fix a; b.", true));
    let unclear = "```!\ncat <<END\n$1\nEND\n```";
    assert_eq!(render_claude(unclear, with("a"), &none), done(NOT_QUOTABLE, true));
}

/// Only a command at the start of a line or after white space runs.
#[test]
fn an_exclamation_mark_within_a_word_runs_nothing() {
    let none = ShellOutputs::new();
    for body in ["KEY=!`date`", "the `format!` macro and `vec!`", "Done!`x`"] {
        assert_eq!(claude(body, "", &none), done(body, false));
    }
}

#[test]
fn a_fenced_block_with_an_exclamation_mark_is_one_script() {
    let body = "Versions:\n```!\nnode --version\ncargo $1\n```\nEnd.";
    let script = "node --version\ncargo build";
    assert_eq!(claude(body, "build", &ShellOutputs::new()), needs(script, true));
    assert_eq!(claude(body, "build", &knows(script, "v22\n")), done("Versions:\nv22\nEnd.", true));
    for body in ["```!\nnever closed", "```sh\nls\n```", "```!\n```"] {
        assert_eq!(claude(body, "", &ShellOutputs::new()), done(body, false));
    }
}

/// Pasted text must not become a command.
#[test]
fn arguments_and_outputs_are_not_expanded_again() {
    let none = ShellOutputs::new();
    assert_eq!(claude("$ARGUMENTS", "!`rm` $1", &none), done("!`rm` $1", true));
    assert_eq!(claude("!`a`", "", &knows("a", "!`b`")), done("!`b`", false));
    assert_eq!(render_gemini("{{args}}", "!{rm}", &none), done("!{rm}", true));
}

#[test]
fn a_gemini_command_quotes_arguments_in_its_shell_lines() {
    let none = ShellOutputs::new();
    assert_eq!(render_gemini("Fix {{args}} {x}", "it", &none), done("Fix it {x}", true));
    assert_eq!(render_gemini("!{grep {{args}} .}", "it's; rm", &none), needs(r"grep 'it'\''s; rm' .", true));
    assert_eq!(render_gemini("!{awk '{print}'}", "", &none), needs("awk '{print}'", false));
}

#[test]
fn only_texts_with_placeholders_take_arguments() {
    let names = ["issue".to_owned()];
    for (body, wanted) in [
        ("$ARGUMENTS", true),
        ("Fix $1.", true),
        ("Fix $issue.", true),
        ("Costs $10.", false),
        ("Do.", false),
    ] {
        assert_eq!(takes_arguments(body, &names), wanted, "{body}");
    }
}

/// Regression: a repository's file of 256 KiB took half a minute, because each unclosed `!{` and fence was searched to
/// the end of the text, and its card had gigabytes, because scripts overlapped.
#[test]
fn hostile_texts_are_read_in_linear_time_and_space() {
    let none = ShellOutputs::new();
    let times = 256 * 1024 / 8;
    for body in ["!{ ".repeat(times), format!("{}{}", "!{".repeat(times), "}".repeat(times))] {
        let calls = gemini_calls(&body);
        assert!(calls.len() <= 1 && calls.iter().all(|call| call.len() < body.len()));
        let ran = match render_gemini(&body, "", &none).expect("it is short enough").0 {
            Rendered::Done(_) => Vec::new(),
            Rendered::Needs(calls) => calls,
        };
        assert_eq!(ran, calls.iter().map(|call| ShellCall::Line((*call).to_owned())).collect::<Vec<_>>());
    }
    for body in [
        "```! ".repeat(times),
        "x ```!\n".repeat(times),
        format!("{}\n```", "$1 ```!\n".repeat(times)),
        format!("{}\nls{}\n```", "```! ".repeat(times / 2), " ".repeat(times)),
        "${".repeat(times),
        "$ARGUMENTS[".repeat(times / 2),
    ] {
        let calls = claude_calls(&body, &[]);
        assert!(calls.iter().map(|call| call.len()).sum::<usize>() <= OUTPUT_BYTES_MAX);
        // Every command that runs is among those that the user is shown.
        if let Rendered::Needs(ran) = claude(&body, "", &none).expect("it is short enough").0 {
            assert!(ran.iter().all(|run| calls.contains(&run.line().as_str())));
        }
    }
}

/// Regression: a plugin whose text says "Append `!` before colon:" and has a code block after it was shown with the
/// shell line ` before colon:`. Lines that may run once arguments are filled in are still shown.
#[test]
fn an_exclamation_mark_in_code_is_not_shown_as_a_shell_line() {
    for body in ["Append `!` before colon:\n\n```\nfix!: it\n```", "(!`date`)"] {
        assert!(claude_calls(body, &["issue".to_owned()]).is_empty(), "{body}");
    }
    // The name of an argument can end with any character.
    let names = ["issue".to_owned(), "x-`".to_owned()];
    for body in [
        "!`date`",
        "at !`date`",
        "$1!`date`",
        "$issue!`date`",
        "$ARGUMENTS[0]!`date`",
        "${A}!`date`",
        "$x-`!`date`",
    ] {
        assert_eq!(claude_calls(body, &names), ["date"], "{body}");
    }
}

/// Regression: a short text with many placeholders and a long pasted argument filled the memory.
#[test]
fn many_placeholders_with_a_long_argument_are_an_error() {
    let (none, long) = (ShellOutputs::new(), "x".repeat(100 * 1024));
    let expected = Err(TooLong);
    for body in
        ["$ARGUMENTS ".repeat(20_000), "$1".repeat(100_000), format!("!`echo {}`", "$1 ".repeat(80_000))]
    {
        assert_eq!(claude(&body, &long, &none), expected);
    }
    for body in ["{{args}}".repeat(30_000), format!("!{{echo {}}}", "{{args}} ".repeat(25_000))] {
        assert_eq!(render_gemini(&body, &long, &none), expected);
    }
}
