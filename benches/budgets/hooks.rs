//! The cost of hooks: alternates the same short turn with and without them and reports the difference. The
//! scripts do nothing, so only the cost of running them remains.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::driver::{Agent, end};
use crate::measures::{Effort, PROMPT, Stage};
use crate::model::Reply;
use crate::table::{Row, Samples};

/// Number of files in the searched folders.
const HOOKS: usize = 200;
const RECIPES: usize = 500;

/// Reads its payload and prints nothing.
const SCRIPT: &str = "#!/bin/sh\nif [ \"$1\" = hook ]; then echo user.message; else read -r payload; fi\n";

/// The same script as a resident hook, which answers without starting a process each time.
const RESIDENT: &str = r#"#!/bin/sh
if [ "$1" = hook ]; then
    echo '{"protocol":2,"events":["user.message"],"mode":"resident"}'
    exit
fi
while IFS= read -r line; do
    id=${line#'{"id":'}
    echo '{"id":'"${id%%,*}"',"result":{}}'
done
"#;

/// Registered for an event that does not occur.
const IDLE: &str = "#!/bin/sh\necho post_compact\n";

pub fn run(stage: &Stage<'_>, effort: Effort, samples: &mut Samples) -> Result<()> {
    let count = effort.of(10);
    let script = executable(&stage.workspace.join("bare"), SCRIPT)?;
    let mut bare = Vec::new();
    for _ in 0..count {
        bare.push(alone(&script)?);
    }
    bare.iter().for_each(|took| samples.time(Row::Script, *took));
    let bare = median(bare);

    // Folders that exist and are empty.
    let hooks = stage.home.join("hooks");
    fs::create_dir_all(&hooks)?;
    fs::create_dir_all(stage.workspace.join(".epitome/hooks"))?;
    let without = asked(stage, count)?;
    without.iter().for_each(|took| samples.time(Row::AskNoHooks, *took));
    if !stage.subject.durable {
        // The floor has no hooks.
        return Ok(());
    }
    let without = median(without);
    for (row, text, baseline) in
        [(Row::HookScript, SCRIPT, without + bare), (Row::HookResident, RESIDENT, without)]
    {
        let hook = executable(&hooks.join("measured"), text)?;
        for took in asked(stage, count)? {
            samples.time(row, took.saturating_sub(baseline));
        }
        fs::remove_file(hook)?;
    }
    Ok(())
}

/// Measures hook discovery with many files against empty folders: the additional delay of the first prompt.
pub fn found(stage: &Stage<'_>, effort: Effort, samples: &mut Samples) -> Result<()> {
    let count = effort.of(5);
    let nothing = median((0..count).map(|_| first_asked(stage)).collect::<Result<_>>()?);
    if !stage.subject.durable {
        return Ok(());
    }
    let (hooks, recipes) = (stage.home.join("hooks"), stage.home.join("recipes"));
    fs::create_dir_all(&hooks)?;
    fs::create_dir_all(&recipes)?;
    for number in 0..HOOKS {
        executable(&hooks.join(format!("idle{number}")), IDLE)?;
    }
    for number in 0..RECIPES {
        let text = format!("---\ndescription: The recipe {number}\n---\nDo {{{{.input}}}} {number} times.\n");
        fs::write(recipes.join(format!("recipe{number}.md")), text)?;
    }
    // Each version of an executable is probed once.
    first_asked(stage)?;
    for _ in 0..count {
        samples.time(Row::Found, first_asked(stage)?.saturating_sub(nothing));
    }
    // Later measures may use the same home.
    fs::remove_dir_all(hooks)?;
    fs::remove_dir_all(recipes)?;
    Ok(())
}

/// Measures the times from a prompt until the model is called, `count` times in one session, after a first prompt that
/// is not counted.
fn asked(stage: &Stage<'_>, count: u32) -> Result<Vec<Duration>> {
    let mut agent = stage.ready()?;
    let (session, _) = agent.new_session()?;
    let mut took = Vec::new();
    for number in 0..=count {
        let (asked, sent) = ask(stage, &mut agent, &session)?;
        if number > 0 {
            took.push(asked - sent);
        }
    }
    end(agent)?;
    Ok(took)
}

/// The time from `session/new` in a fresh process until its first prompt reaches the model.
fn first_asked(stage: &Stage<'_>) -> Result<Duration> {
    let mut agent = stage.ready()?;
    let begun = Instant::now();
    let (session, _) = agent.new_session()?;
    let (asked, _) = ask(stage, &mut agent, &session)?;
    end(agent)?;
    Ok(asked - begun)
}

/// Runs one short turn; returns when the model was called and when the prompt was sent.
fn ask(stage: &Stage<'_>, agent: &mut Agent, session: &str) -> Result<(Instant, Instant)> {
    let performance = stage.model.plan(Reply::Short);
    let (id, sent) = agent.prompt(session, PROMPT)?;
    let asked = performance.asked()?;
    agent.stop(id, "end_turn")?;
    Ok((asked, sent))
}

/// The time of the script when it is run directly through the standard library.
fn alone(script: &Path) -> Result<Duration> {
    let begun = Instant::now();
    let mut child = Command::new(script)
        .arg("run")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start a script in the temporary directory")?;
    child.stdin.take().context("stdin was piped")?.write_all(b"{\"event\":\"user.message\"}\n")?;
    let mut said = String::new();
    child.stdout.take().context("stdout was piped")?.read_to_string(&mut said)?;
    let status = child.wait()?;
    let took = begun.elapsed();
    ensure!(status.success() && said.is_empty(), "the bare script ended with {status} and said {said:?}");
    Ok(took)
}

fn executable(path: &Path, text: &str) -> Result<PathBuf> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(path.to_path_buf())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
