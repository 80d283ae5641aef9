//! Decisions of configuration rules about calls.

use std::sync::Arc;

use super::*;
use epitome_config::rules::parse;

fn written(word: PermissionDecision, text: &str) -> WrittenRule {
    let pattern = parse(text).unwrap_or_else(|wrong| panic!("{text}: {}", wrong.message));
    WrittenRule { word, pattern, path: "/home/me/.epitome/config.toml".into(), line: 3, mistake: None }
}

fn workspace() -> Workspace {
    let environment = vec![("HOME".into(), "/home/me".into())];
    Workspace::new("/w", Vec::new(), Arc::new(environment))
}

fn judged(tool: &str, access: &Access, mode: Mode, rules: &[WrittenRule]) -> Judged {
    let workspace = workspace();
    judge(&PermissionQuery {
        tool,
        names: &[],
        access,
        mode,
        is_sandboxed: true,
        remembered: &[],
        kept: &[],
        rules,
        workspace: &workspace,
        facts: &DiskFacts::look_up(access, &workspace),
    })
}

/// `a` allowed, `o` asked, `d` denied.
fn letter(judged: &Judged) -> char {
    match judged.verdict {
        PermissionVerdict::Allow { .. } => 'a',
        PermissionVerdict::Ask { .. } => 'o',
        PermissionVerdict::Deny { .. } => 'd',
    }
}

fn line(line: &str) -> Access {
    Access::Command { line: line.to_owned(), confined: true, changes_git: false }
}

fn rules(allow: &[&str], ask: &[&str], deny: &[&str]) -> Vec<WrittenRule> {
    let of = |word, texts: &[&str]| texts.iter().map(|text| written(word, text)).collect::<Vec<_>>();
    [
        of(PermissionDecision::Allow, allow),
        of(PermissionDecision::Ask, ask),
        of(PermissionDecision::Deny, deny),
    ]
    .concat()
}

#[test]
fn commands_are_judged_by_every_part_of_the_line() {
    let rules = rules(
        &["bash(cargo *)", "bash(ls *)", "bash(cat *)", "bash(git *)"],
        &["bash(git push)"],
        &["bash(rm *)"],
    );
    // Columns: ask, read_only, full.
    for (text, wanted) in [
        ("cargo test", "ada"),
        ("cargo test && ls -l | cat", "ada"),
        ("cargo test; curl a.example", "oda"),
        ("cargo test > f", "oda"),
        ("A=1 cargo test", "oda"),
        ("git push", "odo"),
        ("git -C x push --force", "odo"),
        ("ls; git push origin main", "odo"),
        ("rm x", "ddd"),
        ("cargo test; sudo rm -rf x", "ddd"),
        ("find . -name a | xargs rm", "ddd"),
        ("sh -c 'rm x'", "ddd"),
        ("echo x | sh", "odo"),
        ("$X a", "odo"),
        ("cat .env", "oda"),
        ("cat .e*", "oda"),
        ("ls src/*.rs", "ada"),
    ] {
        let modes = [Mode::Ask, Mode::ReadOnly, Mode::Full];
        let letters: String =
            modes.iter().map(|mode| letter(&judged("bash", &line(text), *mode, &rules))).collect();
        assert_eq!(letters, wanted, "{text}");
    }
    let outside = Access::Command { line: "cargo test".into(), confined: false, changes_git: false };
    assert_eq!(
        letter(&judged("bash", &outside, Mode::Ask, &rules)),
        'o',
        "the sandbox is left only if asked"
    );
}

/// With `allow = ["bash"]`, `X=rm; $X keep` ran although a rule denied `rm`: a rule for all commands allowed the line
/// before it was considered whether it may hide what another rule denies.
#[test]
fn a_rule_for_all_commands_allows_no_line_that_may_hide_a_denied_one() {
    let of = |allow: &[&str], ask: &[&str], deny: &[&str]| {
        let mut orders = vec![rules(allow, ask, deny)];
        orders.push(orders[0].iter().rev().cloned().collect());
        orders
    };
    let modes = [Mode::Ask, Mode::ReadOnly, Mode::AcceptEdits, Mode::Auto, Mode::Full];
    for rules in [
        of(&["bash"], &[], &["bash(rm *)"]),
        of(&["bash"], &["bash(rm *)"], &[]),
        of(&["bash", "bash(ls *)"], &[], &["Read(secret/**)", "bash(rm *)"]),
        of(&["bash", "bash(ls *)"], &[], &["bash(rm *)", "bash(git push)", "bash(curl *)"]),
    ]
    .concat()
    {
        for text in ["X=rm; $X keep", "`echo rm` keep", "eval \"$X keep\""] {
            let letters: String =
                modes.iter().map(|mode| letter(&judged("bash", &line(text), *mode, &rules))).collect();
            assert!(letters.replace('d', "o") == "ooooo", "{text}: {letters} {rules:?}");
        }
        let allowed = letter(&judged("bash", &line("make; ls src"), Mode::Ask, &rules));
        assert_eq!(allowed, 'a', "{rules:?}");
    }
    // The words of a command may be hidden as well.
    let rules = rules(&["bash"], &[], &["bash(git push)"]);
    for (text, wanted) in [
        ("X=push; git $X", 'o'),
        ("git -C /x --no-pager $X origin", 'o'),
        ("git --no-pager $X origin", 'o'),
        ("git -C /x $X", 'o'),
        ("sudo git \"$X\"", 'o'),
        ("git -c alias.p=$X p", 'o'),
        ("git -C \"$X\" status", 'a'),
        ("git log $X", 'a'),
        ("cargo $X", 'a'),
        // `X="1 git push"` makes it another command.
        ("timeout $X cargo test", 'o'),
        ("timeout 5 cargo $X", 'a'),
    ] {
        for mode in [Mode::Auto, Mode::Full] {
            assert_eq!(letter(&judged("bash", &line(text), mode, &rules)), wanted, "{text} {mode:?}");
        }
    }
}

/// A rule for a host didn't apply to its other ports: `deny = ["web_fetch(evil.example)"]` let
/// `http://evil.example:8080/` through.
#[test]
fn a_host_is_denied_with_every_port_and_allowed_without_one() {
    let fetch = |host: &str| Access::Fetch { url: format!("http://{host}/"), host: host.to_owned() };
    let of =
        |rules: &[WrittenRule], host: &str| letter(&judged("web_fetch", &fetch(host), Mode::Full, rules));
    let deny = rules(&[], &["web_fetch(asked.example)"], &["web_fetch(Evil.example)", "web_fetch([::1])"]);
    for (host, wanted) in [
        ("evil.example", 'd'),
        ("evil.example:8080", 'd'),
        ("asked.example:8080", 'o'),
        ("[::1]:8080", 'd'),
        ("[::1]", 'd'),
        ("good.evil.example", 'a'),
        ("evil.example.org:8080", 'a'),
    ] {
        assert_eq!(of(&deny, host), wanted, "{host}");
    }
    let allow = rules(&["web_fetch(good.example)"], &[], &[]);
    let asked = |host: &str| letter(&judged("web_fetch", &fetch(host), Mode::Ask, &allow));
    assert_eq!((asked("good.example"), asked("good.example:8080")), ('a', 'o'));
}

#[test]
fn auto_runs_what_the_sandbox_restricts() {
    let none = rules(&[], &[], &[]);
    let some = rules(&[], &["bash(git push)"], &["bash(rm *)"]);
    for (text, without, with) in [
        ("cargo test", 'a', 'a'),
        ("make > log", 'a', 'a'),
        ("cat src/*.rs | sort -o x", 'a', 'a'),
        ("$X a", 'a', 'o'),
        ("git push", 'a', 'o'),
        ("rm x", 'a', 'd'),
        ("cat .env", 'o', 'o'),
        ("cat < sub/.env", 'o', 'o'),
        ("cat .e*", 'o', 'o'),
        ("openssl rsa --in=server.key", 'o', 'o'),
        ("cat *.json", 'a', 'a'),
        ("echo 'see .env'", 'a', 'a'),
        ("cat $F", 'a', 'a'),
    ] {
        let of = |rules: &[WrittenRule]| letter(&judged("bash", &line(text), Mode::Auto, rules));
        assert_eq!((of(&none), of(&some)), (without, with), "{text}");
    }
    let outside = Access::Command { line: "cargo test".into(), confined: false, changes_git: false };
    assert_eq!(letter(&judged("bash", &outside, Mode::Auto, &none)), 'o');
    let decided = judged("bash", &line("cargo test"), Mode::Auto, &none).decided;
    assert_eq!(decided, Some(RecordedDecision { allowed: true, by: Decider::Mode { mode: Mode::Auto } }));
}

#[test]
fn a_question_because_of_a_mistake_shows_the_mistake() {
    let mistake = "/c:3:1: unknown key \"denny\"; until it is corrected, Epitome asks before every call";
    let rule = WrittenRule { mistake: Some(mistake.to_owned()), ..written(PermissionDecision::Ask, "*") };
    for access in [line("ls"), Access::Read(vec!["/w/a".into()]), Access::Nothing] {
        let judged = judged("bash", &access, Mode::Full, std::slice::from_ref(&rule));
        assert_eq!((letter(&judged), judged.because.as_deref()), ('o', Some(mistake)), "{access:?}");
    }
}

#[test]
fn auto_asks_about_commands_without_a_complete_sandbox() {
    let workspace = workspace();
    let rule = Rule::Command { line: "make".into() };
    for (remembered, access, wanted) in [
        (&[][..], line("make"), 'o'),
        (std::slice::from_ref(&rule), line("make"), 'a'),
        (&[], Access::Write(vec!["/w/src/a.rs".into()]), 'a'),
    ] {
        let asked = PermissionQuery {
            tool: "bash",
            names: &[],
            access: &access,
            mode: Mode::Auto,
            is_sandboxed: false,
            remembered,
            kept: &[],
            rules: &[],
            workspace: &workspace,
            facts: &DiskFacts::default(),
        };
        assert_eq!(letter(&judge(&asked)), wanted, "{access:?}");
    }
}

/// `git log *` allowed `git log --output=.git/commondir`, which made Git run a program of the model's choice.
#[test]
fn allow_rules_cover_no_options_that_write_or_run() {
    let allow =
        ["bash(git log *)", "bash(find *)", "bash(sort -o *)", "bash(echo *)", "bash(sort *)", "bash(cat *)"];
    let rules = rules(&allow, &[], &[]);
    for (text, wanted) in [
        ("git log --stat -5 -- src", 'a'),
        ("git log -1 --format=format:../evil --output=.git/commondir", 'o'),
        ("git log --outp=x", 'o'),
        ("git log \"--output=x\"", 'o'),
        ("git log --out'put'=x", 'o'),
        ("git log --out\\put=x", 'o'),
        ("git log --output x", 'o'),
        ("git log -p --ext-diff", 'o'),
        ("for f in --output=x; do git log $f; done", 'o'),
        ("git log $(echo --output=x)", 'o'),
        ("cat a | git log --output=x", 'o'),
        ("find . -name '*.rs'", 'a'),
        ("find . -delete", 'o'),
        ("find . -exec cat {} +", 'o'),
        ("sort -o x y", 'a'),
        ("sort -t o y", 'a'),
    ] {
        assert_eq!(letter(&judged("bash", &line(text), Mode::Ask, &rules)), wanted, "{text}");
    }
}

/// An example of docs/permissions.md. `{}` was taken for a file that may contain keys.
#[test]
fn a_rule_covers_the_command_that_find_runs() {
    let rules = rules(&["bash(find * -exec grep *)"], &[], &[]);
    for (text, wanted) in [
        ("find . -name x -exec grep y {} +", 'a'),
        ("find . -delete", 'o'),
        ("find . -exec grep y {.env,x} +", 'o'),
    ] {
        assert_eq!(letter(&judged("bash", &line(text), Mode::Ask, &rules)), wanted, "{text}");
    }
}

#[test]
fn several_rules_may_cover_a_line_together() {
    let of =
        |allow: &[&str], text: &str| letter(&judged("bash", &line(text), Mode::Ask, &rules(allow, &[], &[])));
    assert_eq!(of(&["bash(cargo test)", "bash(ls)"], "cargo test; ls"), 'a');
    assert_eq!(of(&["bash(cargo test)"], "cargo test; ls"), 'o');
    // If a secret is named, only rules without wildcards count.
    assert_eq!(of(&["bash(cargo test)", "bash(cat .env)"], "cargo test; cat .env"), 'a');
    assert_eq!(of(&["bash(cargo *)", "bash(cat .env)"], "cargo test; cat .env"), 'o');
    assert_eq!(of(&["bash"], "cat .env"), 'o');
    assert_eq!(of(&["bash(echo *)", "bash(date *)"], "echo \"$(date)\""), 'a');
    assert_eq!(of(&["bash(echo *)"], "echo \"$(date)\""), 'o');
    assert_eq!(of(&["bash"], "for f in a; do [ -f $f ] && make; done > log"), 'a');
}

#[test]
fn paths_are_judged_by_where_they_lead() {
    let rules = rules(
        &["file_edit(src/**)", "file_edit(*.md)", "Read(//opt/docs)", "Read(~/notes/**)", "file_write"],
        &["Edit(src/ask.rs)"],
        &[
            "Read(secret/**)",
            "Edit(src/gen/)",
            // Rules with names of directories in some frameworks matched nothing: brackets enclosed a set of characters.
            "Read(app/[id]/**)",
            "Read(app/(group)/**)",
            "Read(**/[slug].tsx)",
            "Read(glob:part-[12]/**)",
        ],
    );
    for (tool, access, wanted) in [
        ("file_edit", Access::Write(vec!["/w/src/a.rs".into()]), 'a'),
        ("file_edit", Access::Write(vec!["/w/deep/down/a.md".into()]), 'a'),
        ("file_edit", Access::Write(vec!["/w/Cargo.toml".into()]), 'o'),
        ("file_write", Access::Write(vec!["/w/Cargo.toml".into()]), 'a'),
        ("file_write", Access::Write(vec!["/elsewhere/x".into()]), 'o'),
        ("file_write", Access::Write(vec!["/w/.git/hooks/x".into()]), 'o'),
        ("file_edit", Access::Write(vec!["/w/src/a.rs".into(), "/w/b".into()]), 'o'),
        ("file_edit", Access::Write(vec!["/w/src/.env".into()]), 'o'),
        ("file_edit", Access::Write(vec!["/w/src/.vscode/x".into()]), 'o'),
        ("file_edit", Access::Write(vec!["/w/src/ask.rs".into()]), 'o'),
        ("file_edit", Access::Write(vec!["/w/src/gen/a.rs".into()]), 'd'),
        ("file_edit", Access::Write(vec!["/w/SRC/GEN/a.rs".into()]), 'd'),
        ("file_edit", Access::Write(vec!["/w/secret/a".into()]), 'd'),
        ("file_read", Access::Read(vec!["/w/secret/a".into()]), 'd'),
        ("grep_tool", Access::Read(vec!["/w/secret".into()]), 'd'),
        ("file_read", Access::Read(vec!["/w/secretary".into()]), 'a'),
        ("file_read", Access::Read(vec!["/w/app/[id]/a".into()]), 'd'),
        ("file_read", Access::Read(vec!["/w/app/i/a".into()]), 'a'),
        ("file_read", Access::Read(vec!["/w/app/(group)/a".into()]), 'd'),
        ("file_read", Access::Read(vec!["/w/x/[slug].tsx".into()]), 'd'),
        ("file_read", Access::Read(vec!["/w/part-1/a".into()]), 'd'),
        ("file_read", Access::Read(vec!["/w/part-3/a".into()]), 'a'),
        ("file_read", Access::Read(vec!["/opt/docs/a/b".into()]), 'a'),
        ("file_read", Access::Read(vec!["/home/me/notes/a".into()]), 'a'),
        ("file_read", Access::Read(vec!["/home/me/notes/.env".into()]), 'o'),
        ("file_read", Access::Read(vec!["/home/me/other".into()]), 'o'),
        ("bash", line("cat secret/a"), 'd'),
        ("bash", line("cat < \"/w/secret/a\""), 'd'),
        ("bash", line("echo x > src/gen/a.rs"), 'd'),
    ] {
        assert_eq!(letter(&judged(tool, &access, Mode::Ask, &rules)), wanted, "{tool} {access:?}");
    }
}

#[test]
fn shell_globs_that_may_match_denied_paths_ask() {
    let rules = rules(&["bash(cat *)"], &[], &["Read(private/**)"]);
    let of = |text: &str, mode| letter(&judged("bash", &line(text), mode, &rules));
    assert_eq!(of("cat private/a", Mode::Full), 'd');
    for text in ["cat priv*/a", "cat */a", "cat $X/a", "cat /w/p?ivate/a", "cat [p]rivate/*"] {
        assert_eq!((of(text, Mode::Full), of(text, Mode::Ask)), ('o', 'o'), "{text}");
    }
    assert_eq!((of("cat src/*.rs", Mode::Full), of("cat src/*.rs", Mode::Ask)), ('a', 'a'));
}

#[test]
fn secrets_are_allowed_only_by_rules_that_name_them() {
    let read = |path: &str, rule: &str| {
        let access = Access::Read(vec![path.into()]);
        letter(&judged("file_read", &access, Mode::Ask, &[written(PermissionDecision::Allow, rule)]))
    };
    assert_eq!(read("/w/.env", "file_read(**)"), 'o');
    assert_eq!(read("/w/.env", "file_read"), 'o');
    assert_eq!(read("/w/.env", "file_read(.env)"), 'a');
    assert_eq!(read("/w/a/.env", "file_read(a/.env)"), 'a');
    assert_eq!(read("/w/a/.env", "file_read(a/*)"), 'o');
}

#[test]
fn hosts_and_tools_of_servers() {
    let rules = rules(
        &["web_fetch(docs.rs)", "WebFetch(*.example.com)", "mcp__tracker__get_*"],
        &[],
        &["mcp__tracker__delete", "web_fetch(evil.example.com)"],
    );
    let fetch = |host: &str| Access::Fetch { url: format!("https://{host}/x"), host: host.to_owned() };
    for (host, wanted) in [
        ("docs.rs", 'a'),
        ("docs.rs.evil.org", 'o'),
        ("a.example.com", 'a'),
        ("evil.example.com", 'd'),
        ("example.com", 'o'),
    ] {
        assert_eq!(letter(&judged("web_fetch", &fetch(host), Mode::Ask, &rules)), wanted, "{host}");
    }
    for (tool, wanted) in [("get_issue", 'a'), ("set_issue", 'o'), ("delete", 'd')] {
        let access = Access::External { server: "tracker".into(), tool: tool.into(), reads_only: false };
        let name = format!("mcp__tracker__{tool}");
        assert_eq!(letter(&judged(&name, &access, Mode::Ask, &rules)), wanted, "{tool}");
        assert_ne!(letter(&judged(&name, &access, Mode::ReadOnly, &rules)), 'a', "{tool}");
    }
}

#[test]
fn decisions_name_their_source() {
    let of = |text: &str, mode| {
        judged("bash", &line(text), mode, &rules(&["bash(ls *)"], &["bash(git push)"], &["bash(rm *)"]))
    };
    let config = |rule: &str| Decider::Config {
        rule: rule.to_owned(),
        path: "/home/me/.epitome/config.toml".into(),
        line: 3,
    };
    assert_eq!(
        of("ls", Mode::Ask).decided,
        Some(RecordedDecision { allowed: true, by: config("allow bash(ls *)") })
    );
    assert_eq!(
        of("rm x", Mode::Full).decided,
        Some(RecordedDecision { allowed: false, by: config("deny bash(rm *)") })
    );
    let by_mode = Decider::Mode { mode: Mode::Full };
    assert_eq!(of("make", Mode::Full).decided, Some(RecordedDecision { allowed: true, by: by_mode }));
    let asked = of("git push", Mode::Full);
    assert_eq!(asked.decided, None);
    assert!(asked.because.is_some_and(|why| why.contains("bash(git push)") && why.contains("config.toml:3")));
    let rule = Rule::Command { line: "make".into() };
    let workspace = workspace();
    let access = line("make");
    let asked = PermissionQuery {
        tool: "bash",
        names: &[],
        access: &access,
        mode: Mode::Ask,
        is_sandboxed: true,
        remembered: &[],
        kept: std::slice::from_ref(&rule),
        rules: &[],
        workspace: &workspace,
        facts: &DiskFacts::look_up(&access, &workspace),
    };
    assert_eq!(
        judge(&asked).decided,
        Some(RecordedDecision { allowed: true, by: Decider::Kept { rule: rule.clone() } })
    );
}

/// Regression test: a rule that names a link denied nothing, because calls are judged by their resolved
/// paths.
#[test]
fn deny_rule_for_a_link_applies_to_its_target() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let root = directory.path().canonicalize().expect("it is there");
    std::fs::create_dir_all(root.join("w")).expect("made");
    std::fs::create_dir_all(root.join("elsewhere")).expect("made");
    std::os::unix::fs::symlink(root.join("elsewhere"), root.join("w/link")).expect("linked");
    let workspace = Workspace::new(root.join("w"), Vec::new(), workspace().environment);
    let access = Access::Read(vec![workspace.real("link/a")]);
    let rules = [written(PermissionDecision::Deny, "Read(link/**)")];
    let asked = PermissionQuery {
        tool: "file_read",
        names: &[],
        access: &access,
        mode: Mode::Full,
        is_sandboxed: true,
        remembered: &[],
        kept: &[],
        rules: &rules,
        workspace: &workspace,
        facts: &DiskFacts::look_up(&access, &workspace),
    };
    assert_eq!(letter(&judge(&asked)), 'd');
    let hidden = HiddenFiles::from("grep_tool", &rules, &workspace);
    assert!(hidden.hides(&root.join("elsewhere/a")) && !hidden.hides(&root.join("w/a")));
}

/// `deny = ["skill(deploy)"]` was accepted and denied nothing.
#[test]
fn a_rule_with_a_pattern_denies_or_is_rejected() {
    let path = || vec![PathBuf::from("/w/src/a")];
    let fetch = || Access::Fetch { url: "https://docs.rs/x".to_owned(), host: "docs.rs".to_owned() };
    for (tool, about, access, name) in [
        ("bash", "make *", line("make all"), ""),
        ("file_read", "src/**", Access::Read(path()), ""),
        ("view_image", "src/**", Access::Read(path()), ""),
        ("glob_tool", "src/**", Access::Read(path()), ""),
        ("grep_tool", "src/**", Access::Read(path()), ""),
        ("file_write", "src/**", Access::Write(path()), ""),
        ("file_edit", "src/**", Access::Write(path()), ""),
        ("apply_patch", "src/**", Access::Write(path()), ""),
        ("web_fetch", "docs.rs", fetch(), ""),
        ("skill", "dep*", Access::Nothing, "deploy"),
        ("skill", "deploy", line("make all"), "deploy"),
        ("task", "deploy", Access::Nothing, "deploy"),
        // Rules about these tools have no patterns.
        ("bash_output", "x", Access::Nothing, ""),
        ("bash_kill", "x", Access::Nothing, ""),
        ("ask_user", "x", Access::Nothing, ""),
        ("todo_write", "x", Access::Nothing, ""),
        ("recall", "x", Access::Nothing, ""),
        ("mcp__a__b", "x", Access::Nothing, ""),
        ("embedded", "x", Access::Nothing, ""),
    ] {
        let text = format!("{tool}({about})");
        let Ok(pattern) = parse(&text) else {
            assert_eq!(about, "x", "{text} is a rule");
            continue;
        };
        let rules = [WrittenRule {
            word: PermissionDecision::Deny,
            pattern,
            path: "/c".into(),
            line: 1,
            mistake: None,
        }];
        let workspace = workspace();
        let verdict = |name: &str| {
            let names = [(if tool == "task" { "task" } else { "skill" }, name.to_owned())];
            let is_named = !name.is_empty();
            let asked = PermissionQuery {
                tool,
                names: if is_named { &names } else { &[] },
                access: &access,
                mode: Mode::Full,
                is_sandboxed: true,
                remembered: &[],
                kept: &[],
                rules: &rules,
                workspace: &workspace,
                facts: &DiskFacts::look_up(&access, &workspace),
            };
            judge(&asked).verdict
        };
        assert!(matches!(verdict(name), PermissionVerdict::Deny { .. }), "{text}");
        if !name.is_empty() {
            assert!(!matches!(verdict("other"), PermissionVerdict::Deny { .. }), "{text}");
        }
    }
}

/// `Read(app/[id]/**)` was taken for a pattern by its author's tool, and a misspelled directory protected nothing.
#[test]
fn a_rule_about_nothing_that_exists_is_reported() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().canonicalize().expect("it is there");
    std::fs::create_dir_all(root.join("app/[id]")).expect("made");
    let workspace = Workspace::new(&root, Vec::new(), std::sync::Arc::default());
    let reported = |pattern: &str, file: &Path| {
        let mut rules = rules(&[], &[], &[pattern]);
        rules[0].path = file.to_path_buf();
        unmatched(&rules, &workspace).len()
    };
    let (own, of_repository) = (Path::new("/home/me/config.toml"), root.join(".epitome/config.toml"));
    for (pattern, in_own, in_repository) in [
        ("Read(app/[id]/**)", 0, 0),
        ("Read(app/[slug]/**)", 0, 1),
        ("Edit(glob:app/[a-z]*/**)", 0, 0),
        ("Read(secrets/**)", 0, 1),
        ("Read(.env)", 0, 0),
        ("Read(**/.env)", 0, 0),
        ("Read(//nowhere/at/all)", 1, 1),
        ("bash(rm *)", 0, 0),
    ] {
        assert_eq!(reported(pattern, own), in_own, "{pattern}");
        assert_eq!(reported(pattern, &of_repository), in_repository, "{pattern}");
    }
}
