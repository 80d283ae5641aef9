//! Tests of the recipes that are found for given files in a repository and a home directory.

use std::fs;

use super::*;

/// A home directory and a repository in a temporary directory.
struct RecipeDisk {
    root: tempfile::TempDir,
}

impl RecipeDisk {
    fn with(files: &[(&str, &str)]) -> RecipeDisk {
        let disk = RecipeDisk { root: tempfile::tempdir().expect("a temporary directory can be made") };
        fs::create_dir_all(disk.cwd()).expect("directories can be made");
        for (path, text) in files {
            let path = disk.root.path().join(path);
            fs::create_dir_all(path.parent().expect("test paths have a folder"))
                .expect("directories can be made");
            fs::write(path, text).expect("files can be written");
        }
        disk
    }

    fn cwd(&self) -> PathBuf {
        self.root.path().join("repo")
    }

    fn paths(&self) -> Paths {
        let home = self.root.path().join("home");
        Paths { user_home: Some(home.clone()), ..Paths::below(&home.join(".epitome")) }
    }

    fn catalog_in(&self, folder: &str) -> RecipeCatalog {
        RecipeCatalog::load(&self.root.path().join(folder), &self.paths(), &[])
    }

    fn catalog(&self) -> RecipeCatalog {
        RecipeCatalog::load(&self.cwd(), &self.paths(), &[])
    }
}

/// With `--recipe-dir /nope`, the recipes of that folder were missing, and nothing said why.
#[test]
fn an_additional_folder_that_cant_be_read_is_reported() {
    let disk = RecipeDisk::with(&[("repo/more/one.md", "One.\n"), ("repo/file.md", "Text.\n")]);
    let extra = ["more", "nope", "file.md"].map(PathBuf::from);
    let catalog = RecipeCatalog::load(&disk.cwd(), &disk.paths(), &extra);
    assert_eq!(body(&catalog, "one"), "One.");
    let reported: Vec<&Path> = catalog.problems.iter().map(|problem| problem.path.as_path()).collect();
    assert_eq!(reported, [disk.cwd().join("nope"), disk.cwd().join("file.md")]);
}

fn body(catalog: &RecipeCatalog, name: &str) -> String {
    catalog.find(name).unwrap_or_else(|| panic!("there is a recipe {name}")).body.trim().to_owned()
}

#[test]
fn a_file_of_the_repository_becomes_a_command() {
    let disk = RecipeDisk::with(&[(
        "repo/.epitome/recipes/github/pr.md",
        "---\ndescription: Open a PR\n---\nGo.\n",
    )]);
    let catalog = disk.catalog();
    let command = catalog.commands().into_iter().find(|command| command.name == "github/pr");
    assert_eq!(command.expect("it is listed").description, "Open a PR");
    let source = &catalog.find("github/pr").expect("it is found").source;
    assert!(matches!(source, RecipeSource::Repository(_)));
    assert_eq!(catalog.problems, []);
}

#[test]
fn built_in_recipes_are_valid_and_can_be_overridden() {
    let catalog = RecipeCatalog::built_in();
    assert_eq!(catalog.problems, []);
    assert_eq!(catalog.recipes.len(), BUILT_IN.len());
    let compact = catalog.find("compact").expect("it ships");
    assert_eq!(compact.output, parse::OutputMode::Mutate);
    assert_eq!(compact.allowed_tools.as_deref(), Some(&[][..]));

    let disk = RecipeDisk::with(&[("home/.epitome/recipes/compact", "My own.")]);
    assert_eq!(body(&disk.catalog(), "compact"), "My own.");
}

/// Regression: a checkout's `commit.md` silently replaced the text of `/commit`.
#[test]
fn a_repositorys_recipe_does_not_replace_a_built_in_one() {
    let disk = RecipeDisk::with(&[
        ("repo/.epitome/recipes/commit.md", "Theirs."),
        ("repo/.claude/commands/review.md", "Theirs, too."),
    ]);
    let catalog = disk.catalog();
    let commit = catalog.find("commit").expect("it ships");
    assert_eq!(commit.source, RecipeSource::BuiltIn);
    assert_eq!(body(&catalog, "repository/commit"), "Theirs.");
    assert_eq!(catalog.find("review").expect("it ships").source, RecipeSource::BuiltIn);
    let messages: Vec<&str> = catalog.problems.iter().map(|problem| problem.message.as_str()).collect();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(messages[0].contains("/commit stays the built-in command"), "{messages:?}");
}

/// Regression: the text of a `compact` recipe without hooks was sent like a prompt, and the history stayed.
#[test]
fn a_recipe_that_replaces_a_compaction_is_one() {
    let text = "---\nname: compact\nallowed_tools: []\n---\nSummarize.";
    let disk = RecipeDisk::with(&[
        ("home/.epitome/recipes/compact.md", text),
        ("home/.epitome/recipes/compact-brief.md", "---\noutput: none\n---\nBriefly."),
    ]);
    let catalog = disk.catalog();
    assert!(catalog.find("compact").expect("it is there").is_compaction());
    let brief = catalog.find("compact-brief").expect("it is there");
    assert_eq!(brief.output, parse::OutputMode::None, "it declares something else");
}

/// A compaction of a checkout is only a text for the model, and a user who calls it wants it. Automatic compactions do
/// not change because of a checkout.
#[test]
fn a_repositorys_compaction_is_used_when_it_is_called_and_otherwise_once_it_is_trusted() {
    let disk = RecipeDisk::with(&[("repo/recipes/compact.md", "---\nallowed_tools: []\n---\nTheirs.")]);
    let mut catalog = disk.catalog();
    assert_eq!(catalog.called("compact").expect("it is there").body.trim(), "Theirs.");
    assert_eq!(catalog.find("compact").expect("it ships").source, RecipeSource::BuiltIn);
    catalog.trust(|_| false);
    assert_eq!(catalog.find("compact").expect("it ships").source, RecipeSource::BuiltIn);
    catalog.trust(|_| true);
    assert_eq!(body(&catalog, "compact").trim(), "Theirs.");
}

#[test]
fn a_recipe_cannot_take_the_name_of_a_built_in_command() {
    let disk = RecipeDisk::with(&[
        ("repo/.epitome/recipes/why.md", "Why?"),
        ("repo/.epitome/recipes/past.md", "---\naliases: [undo]\n---\nThe past."),
        ("repo/.epitome/plugins/own/recipes/help.md", "Help."),
    ]);
    let catalog = disk.catalog();
    let listed: Vec<String> = catalog.commands().into_iter().map(|command| command.name).collect();
    assert!(!listed.contains(&"why".to_owned()) && listed.contains(&"past".to_owned()), "{listed:?}");
    let mut messages: Vec<&str> = catalog.problems.iter().map(|problem| problem.message.as_str()).collect();
    messages.sort_unstable();
    assert_eq!(
        messages,
        ["undo", "why"]
            .map(|name| { format!("/{name} is a built-in command, so it does not run this recipe") })
    );
    // Hooks may still call it.
    assert_eq!(body(&catalog, "why"), "Why?");
}

#[test]
fn earlier_places_win() {
    let files = [
        ("repo/.epitome/recipes/x.md", "1"),
        ("repo/.kodelet/recipes/x.md", "2"),
        ("repo/recipes/x.md", "---\nname: x\n---\n3"),
        ("home/.epitome/recipes/x.md", "4"),
        ("home/.kodelet/recipes/x.md", "5"),
        ("home/.claude/skills/x/SKILL.md", "---\nname: x\ndescription: x\n---\n6"),
        ("repo/.claude/commands/x.md", "7"),
        ("home/.claude/commands/x.md", "8"),
        ("repo/.gemini/commands/x.toml", "prompt = \"9\""),
    ];
    for first in 0..files.len() {
        let disk = RecipeDisk::with(&files[first..]);
        assert_eq!(body(&disk.catalog(), "x"), (first + 1).to_string());
    }
}

#[test]
fn a_session_in_a_subdirectory_also_has_the_roots_recipes() {
    let disk = RecipeDisk::with(&[
        ("repo/.git/HEAD", ""),
        ("repo/.epitome/recipes/root.md", "Root."),
        ("repo/.epitome/recipes/both.md", "Root."),
        ("repo/.claude/commands/claude.md", "Claude."),
        ("repo/part/.epitome/recipes/both.md", "Part."),
        ("repo/part/.claude/commands/both.md", "Claude."),
    ]);
    let catalog = disk.catalog_in("repo/part");
    for (name, wanted) in [("root", "Root."), ("both", "Part."), ("claude", "Claude.")] {
        assert_eq!(body(&catalog, name), wanted);
        assert!(
            matches!(catalog.find(name).expect("it is found").source, RecipeSource::Repository(_)),
            "{name}"
        );
    }
    let plan = RecipeCatalog::watched(&disk.root.path().join("repo/part"), &disk.paths(), &[]);
    assert!(plan.concerns(&disk.cwd().join(".epitome/recipes/new.md")));
}

#[test]
fn shadowed_recipes_name_their_replacement() {
    let disk = RecipeDisk::with(&[("repo/.epitome/recipes/x.md", "1"), ("home/.epitome/recipes/x.md", "2")]);
    let catalog = disk.catalog();
    let [shadowed] = &catalog.shadowed[..] else { panic!("{:?}", catalog.shadowed) };
    assert!(shadowed.id == "x" && shadowed.source.path().starts_with(disk.root.path().join("home")));
    assert!(shadowed.by.path().starts_with(disk.cwd()));
}

/// Regression: a recipe with a misspelled handler seemed to swap the context but swapped nothing.
#[test]
fn an_unknown_handler_is_reported_and_shown_in_the_menu() {
    let front = "---\nhooks:\n  turn_end:\n    handlers: [swap_contxt, audit.sh, redact]\n---\nGo.";
    let disk = RecipeDisk::with(&[
        ("repo/.epitome/recipes/x.md", front),
        ("home/.epitome/hooks/audit.sh", "#!/bin/sh\n"),
    ]);
    let catalog = disk.catalog();
    let [problem] = &catalog.problems[..] else { panic!("{:?}", catalog.problems) };
    assert_eq!(problem.position, Some((4, 16)));
    assert!(problem.message.contains("\"swap_contxt\""), "{problem}");
    assert_eq!(problem.hint.as_deref(), Some("did you mean \"swap_context\"?"));
    let command = catalog.commands().into_iter().find(|command| command.name == "x").expect("it is listed");
    assert_eq!(command.description, "Run the x recipe (handler swap_contxt is unknown)");
}

#[test]
fn a_broken_file_is_a_problem_and_shadows_nothing() {
    let disk = RecipeDisk::with(&[
        ("repo/.epitome/recipes/x.md", "---\nallowed_tools: {}\n---\nBroken."),
        ("home/.epitome/recipes/x.md", "Whole."),
    ]);
    let catalog = disk.catalog();
    assert_eq!(body(&catalog, "x"), "Whole.");
    let problem = catalog.problems.first().expect("it is reported");
    assert_eq!(problem.position, Some((2, 16)));
    assert!(problem.message.contains("allowed_tools"), "{problem}");
}

#[test]
fn the_plain_recipes_folder_takes_only_files_with_front_matter() {
    let disk = RecipeDisk::with(&[
        ("repo/recipes/cake.md", "# Cake\n"),
        ("repo/recipes/do.md", "---\nname: do\n---\nDo."),
    ]);
    let catalog = disk.catalog();
    assert!(catalog.find("cake").is_none());
    assert!(catalog.find("do").is_some());
}

#[test]
fn plugins_prefix_their_recipes() {
    let disk = RecipeDisk::with(&[("home/.kodelet/plugins/org@repo/recipes/ship.md", "Ship.")]);
    let catalog = disk.catalog();
    assert_eq!(body(&catalog, "org/repo/ship"), "Ship.");
    assert_eq!(body(&catalog, "org@repo/ship"), "Ship.");
}

#[test]
fn skills_and_commands_of_other_agents_are_commands() {
    let disk = RecipeDisk::with(&[
        ("repo/.claude/skills/pdf/SKILL.md", "---\nname: pdf\ndescription: Reads PDFs\n---\nUse it."),
        ("home/.claude/commands/git/pr.md", "---\nargument-hint: [a] [b]\n---\nSend $1."),
    ]);
    let catalog = disk.catalog();
    let pdf = catalog.find("pdf").expect("it is found");
    assert_eq!(pdf.description, "Reads PDFs");
    assert!(pdf.foreign.directory.as_ref().is_some_and(|folder| folder.ends_with(".claude/skills/pdf")));
    let pr = catalog.find("git/pr").expect("the path is an alias");
    assert_eq!((pr.id.as_str(), pr.argument_hint.as_deref()), ("git:pr", Some("[a] [b]")));
}

/// Regression: `sc/analyze.md` was listed as `/sc/analyze`. Claude Code and Gemini call it `/sc:analyze`, and an
/// editor rejects an unlisted command, so it could not be called by its original name.
#[test]
fn commands_of_other_agents_are_listed_under_their_own_names() {
    let disk = RecipeDisk::with(&[
        ("repo/.claude/commands/sc/deep/analyze.md", "Analyze."),
        ("repo/.gemini/commands/git/commit.toml", "prompt = \"Commit.\""),
        ("repo/.opencode/command/db/seed.md", "Seed."),
        ("home/.config/opencode/commands/plan.md", "Plan."),
        ("home/.codex/prompts/draft.md", "---\ndescription: Drafts\nargument-hint: FILE\n---\nDraft $1."),
        ("home/.codex/prompts/below/not.md", "No prompt."),
        ("home/.claude/skills/group/pdf/skill.md", "Ignored."),
    ]);
    let catalog = disk.catalog();
    let listed: Vec<String> = catalog.commands().into_iter().map(|command| command.name).collect();
    for name in ["sc:deep:analyze", "git:commit", "db/seed", "plan", "prompts:draft"] {
        assert!(listed.contains(&name.to_owned()), "{name} in {listed:?}");
    }
    for (alias, wanted) in
        [("sc/deep/analyze", "Analyze."), ("git/commit", "Commit."), ("draft", "Draft $1.")]
    {
        assert_eq!(body(&catalog, alias), wanted);
    }
    assert!(!listed.iter().any(|name| name.contains("not")), "{listed:?}");
    let messages: Vec<String> = catalog.problems.iter().map(ToString::to_string).collect();
    assert!(messages.len() == 1 && messages[0].contains("skill.md:1:1: this is not read"), "{messages:?}");
}

#[test]
fn what_a_plugin_brings_is_prefixed_with_its_name() {
    let disk = RecipeDisk::with(&[
        ("home/.epitome/plugins/fmt/.claude-plugin/plugin.json", "{\"name\": \"fmt\"}"),
        ("home/.epitome/plugins/fmt/commands/run.md", "Run ${CLAUDE_PLUGIN_ROOT}/x."),
        ("home/.epitome/plugins/fmt/commands/deep/help.md", "Help."),
        ("home/.epitome/plugins/fmt/commands/help.md", "Help."),
        (
            "home/.epitome/plugins/fmt/skills/style/SKILL.md",
            "---\nname: look\ndescription: Looks\n---\nLook.",
        ),
    ]);
    let catalog = disk.catalog();
    assert_eq!(catalog.problems, []);
    let ids: Vec<&str> = catalog.recipes.iter().map(|recipe| recipe.id.as_str()).collect();
    assert_eq!(ids[..4], ["fmt:look", "fmt:deep:help", "fmt:help", "fmt:run"]);
    assert_eq!(body(&catalog, "run"), "Run ${CLAUDE_PLUGIN_ROOT}/x.");
    let plugin = catalog.find("fmt:run").expect("it is found").foreign.plugin.clone();
    assert!(plugin.is_some_and(|plugin| plugin.root.ends_with("plugins/fmt")));
}

#[test]
fn a_session_in_the_home_directory_has_the_users_recipes() {
    let disk = RecipeDisk::with(&[("home/.epitome/recipes/mine.md", "Mine.")]);
    let catalog = RecipeCatalog::load(&disk.root.path().join("home"), &disk.paths(), &[]);
    assert!(matches!(catalog.find("mine").expect("it is found").source, RecipeSource::User(_)));
}

#[test]
fn missing_folders_and_odd_files_are_harmless() {
    let disk = RecipeDisk::with(&[
        ("repo/.epitome/recipes/.hidden.md", "x"),
        ("repo/.epitome/recipes/old.md~", "x"),
        ("repo/.epitome/recipes/notes.txt", "x"),
        ("repo/.epitome/recipes/two words.md", "x"),
    ]);
    let catalog = disk.catalog();
    assert_eq!(catalog.recipes.len(), BUILT_IN.len());
    assert_eq!(catalog.problems.len(), 1);
}

/// Regression: a cloned repository could contain a link from a recipe to a key file; using the recipe would
/// have sent the key to the provider.
#[cfg(unix)]
#[test]
fn a_repository_recipe_cannot_link_outside_the_repository() {
    let disk = RecipeDisk::with(&[("home/secret", "key"), ("repo/.epitome/recipes/a.md", "fine")]);
    let link = disk.cwd().join(".epitome/recipes/x.md");
    std::os::unix::fs::symlink(disk.root.path().join("home/secret"), link).expect("links can be made");
    let catalog = disk.catalog();
    assert!(catalog.find("x").is_none());
    assert!(catalog.problems[0].message.contains("leads out of the repository"));
}

#[cfg(unix)]
#[test]
fn folder_links_work_inside_the_repository_and_for_the_user() {
    let disk = RecipeDisk::with(&[
        ("repo/.agents/skills/pdf/SKILL.md", "Inside."),
        ("elsewhere/own/SKILL.md", "The person's."),
        ("elsewhere/stolen/SKILL.md", "Outside."),
        ("repo/.claude/x", ""),
        ("home/.claude/skills/x", ""),
    ]);
    let at = |path: &str| disk.root.path().join(path);
    let link =
        |to: &str, from: &str| std::os::unix::fs::symlink(at(to), at(from)).expect("links can be made");
    link("repo/.agents/skills", "repo/.claude/skills");
    link("elsewhere/own", "home/.claude/skills/own");
    link("elsewhere", "repo/.agents/skills/all");
    let catalog = disk.catalog();
    assert!(body(&catalog, "pdf").ends_with("Inside."));
    assert!(body(&catalog, "own").ends_with("The person's."));
    assert_eq!(catalog.readable, [at("elsewhere/own").canonicalize().expect("it exists")]);
    assert!(catalog.find("all/stolen").is_none() && catalog.find("stolen").is_none());
    let messages: Vec<&str> = catalog.problems.iter().map(|problem| problem.message.as_str()).collect();
    assert!(messages.iter().all(|message| message.contains("no front matter")), "{messages:?}");
}

#[test]
fn the_watch_plan_covers_missing_folders() {
    let disk = RecipeDisk::with(&[("repo/.epitome/recipes/a/b.md", "x")]);
    let plan = RecipeCatalog::watched(&disk.cwd(), &disk.paths(), &[]);
    for folder in [".epitome/recipes", ".epitome/recipes/a", ".epitome", ""] {
        let folder = disk.cwd().join(folder);
        let wanted = plan.directories.iter().any(|directory| directory.components().eq(folder.components()));
        assert!(wanted, "{} is watched", folder.display());
    }
    assert!(plan.concerns(&disk.cwd().join(".claude")));
    assert!(plan.concerns(&disk.cwd().join(".epitome/recipes/a/c.md")));
    assert!(!plan.concerns(&disk.cwd().join("Cargo.toml")));
}

#[test]
fn built_in_recipes_have_no_problems() {
    for (id, text) in BUILT_IN {
        let Parsed { recipe, notes } = parse::parse(id, RecipeSource::BuiltIn, text).expect("it is read");
        assert_eq!((notes, name_problems(&recipe)), (vec![], vec![]), "{id}");
        assert_eq!(handler_problems(&recipe), [], "{id}");
    }
}

/// Regression: a clone with a big `recipes` folder silently took away the user's own recipes and skills, because one
/// budget of files and of recipes served for the repository's folders, which are first, and for the user's.
#[test]
fn a_big_folder_of_a_repository_does_not_displace_the_users_recipes() {
    let users = [
        ("home/.epitome/recipes/own.md", "Mine."),
        ("home/.claude/skills/tidy/SKILL.md", "---\nname: tidy\ndescription: Tidy\n---\nTidy."),
    ];
    for (folder, count, text, reported) in [
        ("repo/recipes/all", ENTRIES_MAX + 1, "", "repo/recipes"),
        ("repo/.epitome/recipes", RECIPES_MAX + 1, "Theirs.", "repo/.epitome/recipes"),
    ] {
        let disk = RecipeDisk::with(&users);
        let folder = disk.root.path().join(folder);
        fs::create_dir_all(&folder).expect("a folder");
        for number in 0..count {
            fs::write(folder.join(number.to_string()), text).expect("a file");
        }
        let catalog = disk.catalog();
        assert_eq!((body(&catalog, "own"), body(&catalog, "tidy")), ("Mine.".to_owned(), "Tidy.".to_owned()));
        let problems: Vec<String> = catalog.problems.iter().map(ToString::to_string).collect();
        assert!(problems.iter().any(|problem| problem.contains(reported)), "{problems:?}");
        assert!(problems.iter().all(|problem| !problem.contains("home/")), "{problems:?}");
    }
}
