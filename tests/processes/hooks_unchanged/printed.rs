//! The scripts and recipes that kodelet's design documents print, word for word. A file is named by its document and, if
//! it is a script, by its first line there. They need bash, Python, jq and bc, as they always did.

use super::project::*;

macro_rules! printed {
    ($($file:literal),*) => {
        [$(($file, include_str!(concat!("printed/", $file)))),*]
    };
}

fn script(name: &str) -> &'static str {
    let all: [(&str, &str); 11] = printed!(
        "S001-804.sh",
        "S001-837.sh",
        "S001-871.sh",
        "S001-900.sh",
        "S003-403.sh",
        "S003-433.py",
        "S003-479.sh",
        "S003-498.sh",
        "S003-527.sh",
        "S003-556.sh",
        "S004-827.sh"
    );
    all.iter().find(|(file, _)| file.starts_with(name)).expect("the file is printed").1
}

/// A project with one of the scripts.
fn with_script(name: &str) -> Project {
    let project = Project::new();
    project.hook("printed", script(name));
    project
}

#[test]
fn each_script_that_compacts_at_70_percent_does_so_once() {
    for (name, trail) in [
        ("S001-804", "agent_stop printed done: callback compact"),
        ("S003-403", "turn_end printed done: callback compact"),
        ("S003-556", "turn_end printed done: callback compact"),
        ("S004-827", "agent_stop printed done: callback compact"),
    ] {
        let project = with_script(name);
        project.run("say one");
        assert_eq!(project.stored("compacted"), 0, "{name}");
        project.follow("fill");
        project.follow("say two");
        assert_eq!((project.summaries(), project.stored("compacted")), (1, 1), "{name}");
        assert!(project.trail().iter().any(|line| line == trail), "{name}: {:?}", project.trail());
    }
}

#[test]
fn the_script_that_makes_its_own_summary_replaces_the_history() {
    let project = with_script("S001-837");
    project.run("fill the window");
    let heard = project.follow("say two");
    let seen = format!("{:?}", heard.last_seen());
    assert!(seen.contains("Previous context summary: fill the window"), "{seen}");
    assert_eq!((project.stored("mutated"), seen.contains("quick brown fox")), (1, false), "{seen}");
}

/// Without quotes around the summary, what it prints is no JSON.
#[test]
fn the_script_for_the_end_of_the_recipe_is_reported() {
    let project = with_script("S001-871");
    project.run("say one");
    project.follow("/compact");
    assert_eq!(project.stored("compacted"), 1);
    assert!(
        project.trail().iter().any(|line| line.starts_with("agent_stop printed failed")),
        "{:?}",
        project.trail()
    );
}

#[test]
fn the_other_scripts_have_their_effects() {
    let project = with_script("S001-900");
    let heard = project.run("write a.txt");
    let asked = format!("{:?}", heard.last_seen());
    assert!(asked.contains("Please run the linter to check for any issues."), "{asked}");

    let project = with_script("S003-433");
    let heard = project.run("run sudo ls");
    assert!(heard.results()[0].1.contains("Security policy: 'sudo' is not allowed"), "{:?}", heard.results());
    assert_eq!(project.follow("run echo one").results(), [("completed", "one\n[exit code 0]")]);

    let project = with_script("S003-479");
    project.run("run echo one");
    let log = project.read_home(".kodelet/audit.log");
    assert!(log.lines().count() == 1 && log.contains("\"tool_name\":\"bash\""), "{log}");

    let project = with_script("S003-498");
    project.write("foo.txt", "x");
    let asked = format!("{:?}", project.run("say one").last_seen());
    assert!(asked.contains("I noticed foo.txt exists. Please remove it."), "{asked}");

    let project = with_script("S003-527");
    project.run("say one");
    let run = &project.trail_entries()[0]["run"];
    let logged = run["stderr"].as_str().expect("it writes to stderr");
    assert!(run["verdict"] == "nothing" && logged.starts_with("Turn 1: context"), "{run}");
}

/// Two of them declare no handler. Their summary was appended to the history instead of replacing it.
#[test]
fn the_recipes_replace_the_history() {
    for (file, recipe) in printed!("S000-compact-brief.md", "S001-compact.md", "S004-compact.md") {
        let name = file.split_once('-').expect("a document and a name").1;
        let project = Project::new();
        project.user.write(format!(".kodelet/recipes/{name}"), recipe);
        project.run("say one");
        project.follow(&format!("/{}", name.trim_end_matches(".md")));
        assert_eq!(project.stored("compacted"), 1, "{file}");
        let asked = project.follow("say two").last_seen().len();
        assert_eq!(asked, 1, "{file}: the summary and the prompt are one message");
    }
}
