//! Runs the examples of `protocol-fixtures/recipes` and the recipes that ship.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use epitome::recipe::catalog::RecipeCatalog;
use epitome::recipe::command::bind;
use epitome::recipe::render::{RenderContext, Rendered, ShellOutputs, render};
use epitome::recipe::template::{Evaluated, TemplateScope, TemplateValue, compile, evaluate};
use epitome::tools::command_line::refused;

/// One example, parsed from its lines.
#[derive(Default)]
struct Example {
    title: String,
    line: usize,
    scope: TemplateScope,
    known: BTreeMap<Vec<String>, String>,
    template: Vec<String>,
    expected: Vec<String>,
}

#[test]
fn the_template_language_examples_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("protocol-fixtures/recipes");
    let mut wrong = String::new();
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the fixtures are there") {
        let path = entry.expect("the fixtures can be listed").path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("fixtures are text");
        for example in examples(&text) {
            count += 1;
            let got = outcome(&example);
            if got != example.expected {
                let place = format!("{}:{}", path.display(), example.line);
                wrong += &format!(
                    "\n{place}: {}\n  wanted {:#?}\n  got {got:#?}\n",
                    example.title, example.expected
                );
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count > 70, "only {count} examples were found");
}

fn examples(text: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let rest = |mark: &str| line.strip_prefix(mark).map(|rest| rest.strip_prefix(' ').unwrap_or(rest));
        if let Some(title) = rest("==") {
            examples.push(Example { title: title.to_owned(), line: index + 1, ..Example::default() });
            continue;
        }
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let example = examples.last_mut().unwrap_or_else(|| panic!("line {} has no example", index + 1));
        if let Some((name, value)) = rest("with").and_then(|rest| rest.split_once('=')) {
            example.scope.variables.insert(name.to_owned(), TemplateValue::Text(value.to_owned()));
        } else if let Some(name) = rest("optional") {
            example.scope.optional.insert(name.to_owned());
        } else if line == "go" {
            example.scope.go_compat = true;
        } else if let Some((words, output)) = rest("knows").and_then(|rest| rest.split_once(" => ")) {
            example.known.insert(words.split(' ').map(str::to_owned).collect(), output.to_owned());
        } else if let Some(line) = rest("|") {
            example.template.push(line.to_owned());
        } else if line.starts_with(['>', '~', '?', '!']) {
            let rest = rest(&line[..1]).unwrap_or_default();
            example.expected.push(format!("{} {rest}", &line[..1]).trim_end().to_owned());
        } else {
            panic!("line {} is not understood: {line}", index + 1);
        }
    }
    examples
}

/// The output of an example, in the notation of the fixtures.
fn outcome(example: &Example) -> Vec<String> {
    let source = example.template.join("\n");
    let evaluated = compile(&source).and_then(|template| evaluate(&template, &example.scope, &example.known));
    let lines = match evaluated {
        Ok(Evaluated::Done { text, warnings }) => {
            let text = text.split('\n').map(|line| format!("> {line}"));
            text.chain(warnings.iter().map(|warning| format!("~ {warning}"))).collect::<Vec<_>>()
        }
        Ok(Evaluated::Needs(calls)) => calls.iter().map(|words| format!("? {}", words.join(" "))).collect(),
        Err(error) => {
            let (line, column) = error.position(&source);
            vec![format!("! {line}:{column} {}", error.message)]
        }
    };
    lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
}

/// Renders a shipped recipe as called by the user's text.
fn shipped(name: &str, typed: &str) -> String {
    let catalog = RecipeCatalog::built_in();
    let recipe = catalog.find(name).expect("it ships");
    let arguments = bind(recipe, typed).expect("it can be called so");
    let surroundings = RenderContext { cwd: "/w/app".to_owned(), ..RenderContext::default() };
    match render(recipe, &arguments, &surroundings, &ShellOutputs::new()).expect("it renders") {
        Rendered::Done(prompt) => {
            assert_eq!(prompt.warnings, Vec::<String>::new(), "{name}");
            prompt.text
        }
        Rendered::Needs(calls) => panic!("{name} wants to run {calls:?}; the agent has tools for that"),
    }
}

#[test]
fn shipped_recipes_render_bare_and_with_additional_instructions() {
    let names: BTreeSet<String> =
        RecipeCatalog::built_in().commands().into_iter().map(|command| command.name).collect();
    assert_eq!(
        Vec::from_iter(&names),
        ["commit", "compact", "compact-brief", "handoff", "init", "pr", "review", "summary"]
    );
    for name in &names {
        let bare = shipped(name, "");
        assert!(!bare.contains("{{") && bare.len() > 200, "{bare}");
        let focused = shipped(name, "mind the Königsberg module");
        assert!(focused.contains("mind the Königsberg module"), "{name} loses what the user typed");
        assert!(!focused.contains("Additional instructions"), "{name} has a place for it");
    }
}

#[test]
fn the_compact_prompt_requires_tags_and_omits_its_handler_argument() {
    let text = shipped("compact", "keep=2 the parser");
    assert!(text.contains("<summary>") && text.contains("the parser") && !text.contains("keep=2"), "{text}");
}

#[test]
fn the_pr_recipe_uses_the_given_base_or_looks_for_it() {
    assert!(shipped("pr", "base=develop").contains("The base is `develop`."));
    assert!(shipped("pr", "").contains("Find the base"));
}

#[test]
fn the_handoff_recipe_names_its_recipient() {
    assert!(shipped("handoff", "to=\"the night shift\"").contains("hand-over for the night shift."));
    assert!(shipped("handoff", "").contains("who knows nothing of this conversation"));
}

/// Hooks are for the actual work, not for chores such as a commit; `pr` only writes a text.
#[test]
fn chore_recipes_run_no_hooks_and_only_the_commands_they_need() {
    let catalog = RecipeCatalog::built_in();
    let find = |name: &str| catalog.find(name).expect("it ships");
    assert!(!find("commit").run_hooks && !find("pr").run_hooks);
    let allowed = find("pr").allowed_commands.clone().expect("it is limited");
    for (line, runs) in [
        ("git status", true),
        ("git diff --stat main...HEAD | cat", false),
        ("git log --oneline main..HEAD && git diff main...HEAD -- src", true),
        ("git rev-parse --abbrev-ref origin/HEAD 2>/dev/null", true),
        ("git branch --show-current", true),
        ("git branch -D main", false),
        ("git push", false),
        ("git commit -m x", false),
        ("gh pr create", false),
    ] {
        assert_eq!(refused(line, &allowed).is_none(), runs, "{line}");
    }
    for name in ["handoff", "summary", "compact", "compact-brief"] {
        assert_eq!(find(name).allowed_tools.as_deref(), Some(&[][..]), "{name} is text alone");
    }
    for name in ["handoff", "summary"] {
        assert!(!find(name).swaps_context(), "{name} changes nothing");
    }
}

#[test]
fn the_review_recipe_names_its_target() {
    assert!(shipped("review", "target=main..HEAD").contains("`main..HEAD`"));
    assert!(shipped("review", "").contains("the uncommitted changes"));
}

/// Fragments of templates, so that random texts get past the lexer.
const PIECES: [&str; 40] = [
    "{{",
    "}}",
    "{{-",
    " -}}",
    "{{if",
    "{{else}}",
    "{{else if",
    "{{end}}",
    "{{range",
    "{{with",
    "{{define \"t\"}}",
    "{{template \"t\"",
    "{{$x := ",
    "{{$x = ",
    " .a",
    ".b",
    " $x",
    "$",
    " \"s\"",
    " 7",
    " -1.5e3",
    "'c'",
    "`r`",
    "(",
    ")",
    "|",
    " eq",
    " printf \"%5d%q\"",
    " len",
    " index",
    " default",
    " bash \"c\"",
    " and",
    " not",
    "/*",
    "*/",
    "é\n",
    " ",
    "{{break}}",
    "text",
];

proptest::proptest! {
    #[test]
    fn no_template_makes_the_evaluator_panic(picks in proptest::collection::vec(0..PIECES.len(), 0..40)) {
        let source: String = picks.into_iter().map(|pick| PIECES[pick]).collect();
        let mut scope = TemplateScope::default();
        scope.variables.insert("a".to_owned(), TemplateValue::Text("1".to_owned()));
        if let Err(error) = compile(&source).and_then(|template| evaluate(&template, &scope, &BTreeMap::new())) {
            error.position(&source);
        }
    }

    #[test]
    fn text_without_declared_keys_is_never_changed(text in "\\PC*") {
        let catalog = RecipeCatalog::built_in();
        let arguments = bind(catalog.find("summary").expect("it ships"), &text).expect("nothing can be wrong");
        proptest::prop_assert_eq!(arguments.free, text.trim());
    }
}
