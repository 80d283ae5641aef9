//! Generates the pictures in `docs/pictures`, so that they always show the current program:
//!
//! ```text
//! cargo build --release && cargo run -p epitome-pictures -- target/release/epitome docs/pictures [NAME…]
//! ```
//!
//! Each picture shows a program in a terminal (created by `script` of util-linux): its last screen, or all of them as
//! an animation. The model is scripted; everything else is real. If a program is not installed, a message names it and
//! its pictures are left unchanged. Editors find their packages (codecompanion.nvim and plenary.nvim; agent-shell,
//! acp.el and shell-maker) in the directory `EDITOR_PACKAGES`.

mod scenes;
mod svg;
mod terminal;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use scenes::{SCENES, Stage};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pictures: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(program), Some(directory)) = (arguments.next(), arguments.next()) else {
        bail!("usage: pictures EPITOME DIRECTORY [NAME…]");
    };
    let names: Vec<String> = arguments.map(|name| name.to_string_lossy().into_owned()).collect();
    let unknown = names.iter().find(|name| !SCENES.iter().any(|scene| scene.name == name.as_str()));
    if let Some(name) = unknown {
        let known: Vec<&str> = SCENES.iter().map(|scene| scene.name).collect();
        bail!("there is no picture {name:?}; there are {}", known.join(", "));
    }
    let program = PathBuf::from(&program).canonicalize().with_context(|| format!("{}", program.display()))?;
    let directory = PathBuf::from(directory);
    std::fs::create_dir_all(&directory).with_context(|| format!("{}", directory.display()))?;
    for scene in SCENES.iter().filter(|scene| names.is_empty() || names.iter().any(|name| name == scene.name))
    {
        let stage = Stage::set(&program).context("the stage")?;
        if let Some(missing) = scene.missing(&stage) {
            eprintln!("{}: left as it is, because {missing}", scene.name);
            continue;
        }
        let command = (scene.command)(&stage)?;
        let recording = terminal::record(scene.size, &command, scene.keys, &stage)
            .with_context(|| scene.name.to_owned())?;
        let path = directory.join(scene.name).with_extension("svg");
        let picture = svg::draw(&recording, scene.title, scene.is_animated);
        std::fs::write(&path, picture).with_context(|| format!("{}", path.display()))?;
        eprintln!("{}: {} screens", path.display(), recording.screens.len());
    }
    Ok(())
}
