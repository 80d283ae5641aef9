//! `apply_patch`: changes several files in one call, all or none. Everything is checked before anything is
//! written; if a write then fails, the previous ones are rolled back.

mod fit;
mod parse;

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io;
use std::path::PathBuf;

use serde_json::Value;

use self::parse::FilePatch;
use super::buffers::Saved;
use super::disk::{CancelFlag, CurrentContent};
use super::file_edit::listed;
use super::notebook::Notebook;
use super::read_state::{self, ReadState};
use super::schema::{self, InputKey};
use super::{
    Access, BoxFuture, Needs, ParsedTool, ToolContext, ToolError, ToolResult, Workspace, disk, input,
};
use epitome_thread::{CallDisplay, Location, ToolDisplay, ToolKind, ToolSpec};

/// Maximum size in bytes of all files of a patch, old and new; both are kept in memory for a rollback.
const ALL_BYTES_MAX: usize = 64 * 1024 * 1024;

const FAULTS_SHOWN_MAX: usize = 10;
const LOCATIONS_MAX: usize = 20;

pub struct ApplyPatch;

impl ParsedTool for ApplyPatch {
    type Call = Vec<FilePatch>;
    const NEEDS: Needs = Needs::EditorBuffers;

    fn spec(&self) -> ToolSpec {
        let description = "Applies a patch to one or more files, completely or not at all. Read files before you \
                           change them. The format:\n\
                           *** Begin Patch\n\
                           *** Update File: path/one\n\
                           *** Move to: path/of/its/new/name (only to rename)\n\
                           @@ a line above the place, such as the function's (only where the context is not unique)\n \
                           context line\n\
                           -line that goes\n\
                           +line that comes\n \
                           context line\n\
                           *** Add File: path/two\n\
                           +each line of it\n\
                           *** Delete File: path/three\n\
                           *** End Patch\n\
                           Give 3 lines of context around a change, exactly as in the file, and hunks in the file's \
                           order. `*** End of File` below a hunk says that it is at the end. A unified diff is taken as \
                           well.";
        schema::spec("apply_patch", description, [InputKey::text("input", "The whole patch.").required()])
    }

    fn display(&self, input: &Value, workspace: &Workspace) -> CallDisplay {
        let kind = ToolKind::Edit;
        let files = self.parse(input, workspace).unwrap_or_default();
        let paths: BTreeSet<&str> = files.iter().flat_map(FilePatch::paths).collect();
        let paths: BTreeSet<PathBuf> = paths.into_iter().map(|path| workspace.resolve(path)).collect();
        let locations = paths.iter().take(LOCATIONS_MAX);
        let locations = locations.map(|path| Location { path: workspace.target(path), line: None }).collect();
        // Also mention unlisted files whose real location differs from their path or is outside of the workspace.
        let elsewhere: Vec<String> = paths
            .iter()
            .filter(|path| workspace.target(path) != **path || !workspace.contains(path))
            .map(|path| workspace.describe(path, kind))
            .collect();
        let title = match (files.as_slice(), paths.iter().collect::<Vec<_>>().as_slice()) {
            ([FilePatch::Delete { .. }], [only]) => format!("Delete {}", workspace.describe(only, kind)),
            ([FilePatch::Add { .. }], [only]) => format!("Write {}", workspace.describe(only, kind)),
            (_, [only]) => format!("Edit {}", workspace.describe(only, kind)),
            (_, []) => "Apply a patch".to_owned(),
            (_, _) if elsewhere.is_empty() => format!("Edit {} files", paths.len()),
            (_, _) => format!("Edit {} files: {}", paths.len(), elsewhere.join("; ")),
        };
        CallDisplay { title, kind, locations }
    }

    fn parse(&self, input: &Value, _: &Workspace) -> Result<Vec<FilePatch>, ToolError> {
        parse::parse(&input::named(input, "input")?)
    }

    fn access(&self, files: Vec<FilePatch>, workspace: &Workspace) -> Result<Access, ToolError> {
        let paths: BTreeSet<PathBuf> =
            files.iter().flat_map(FilePatch::paths).map(|path| workspace.real(path)).collect();
        Ok(Access::Write(paths.into_iter().collect()))
    }

    fn preview(&self, files: Vec<FilePatch>, context: ToolContext) -> BoxFuture<Vec<ToolDisplay>> {
        disk::preview(context, move |context| Ok(plan(&files, context, None)?.shown()))
    }

    fn check(&self, files: Vec<FilePatch>, context: ToolContext) -> BoxFuture<Result<(), ToolError>> {
        disk::check(context, move |context| plan(&files, context, Some(&context.files)).map(drop))
    }

    fn run(&self, files: Vec<FilePatch>, context: ToolContext) -> BoxFuture<ToolResult> {
        disk::run(context, move |context, stop| run(&files, context, stop))
    }
}

fn run(files: &[FilePatch], context: &ToolContext, stop: &CancelFlag) -> Result<ToolResult, ToolError> {
    let mut plan = plan(files, context, Some(&context.files))?;
    plan.write(context, stop, || ())?;
    let states: Vec<(PathBuf, Option<String>)> = plan
        .files
        .iter()
        .map(|file| (file.real.clone(), file.new.as_deref().map(read_state::state_of)))
        .collect();
    context.files.note(&states);
    let locations = plan.files.iter().filter(|file| file.new.is_some()).take(LOCATIONS_MAX);
    let locations = locations
        .map(|file| Location {
            path: file.path.clone(),
            line: file.lines.first().and_then(|line| u32::try_from(*line).ok()),
        })
        .collect();
    Ok(ToolResult {
        shown: plan.shown(),
        locations,
        raw: Some(read_state::raw(&states)),
        ..ToolResult::completed(plan.report(&context.workspace))
    })
}

/// The effects of a patch, per file and in its order.
#[derive(Default)]
struct PatchPlan {
    files: Vec<PlannedFile>,
    notes: Vec<String>,
    /// The notes that the person sees, too.
    notes_shown: Vec<ToolDisplay>,
}

/// The content of a file before and after the patch; `None` if it doesn't exist.
struct PlannedFile {
    real: PathBuf,
    /// Whether the old text is unsaved text of the user's editor.
    is_unsaved: bool,
    /// The path that is shown to clients.
    path: PathBuf,
    old: Option<Vec<u8>>,
    new: Option<Vec<u8>>,
    permissions: Option<Permissions>,
    /// Line numbers of the changes in the old text.
    lines: Vec<usize>,
    /// Set if the file is the target of a move.
    moved: Option<MovedFile>,
    /// Whether the file was moved away; its old text is then displayed with the target.
    moved_away: bool,
}

struct MovedFile {
    from: PathBuf,
    old: Vec<u8>,
    permissions: Option<Permissions>,
}

/// Computes the new state of all files. The error lists the problems of all files, so that one retry is sufficient.
/// If `known` is `None`, the model may change files that it has not read.
fn plan(
    files: &[FilePatch],
    context: &ToolContext,
    known: Option<&ReadState>,
) -> Result<PatchPlan, ToolError> {
    let mut plan = PatchPlan::default();
    let mut faults: Vec<String> = Vec::new();
    for file in files {
        if let Err(fault) = plan.take(file, context, known).map_err(String::from)
            && !faults.contains(&fault)
        {
            faults.push(fault);
        }
        let bytes = |text: &Option<Vec<u8>>| text.as_ref().map_or(0, Vec::len);
        if plan.files.iter().map(|file| bytes(&file.old) + bytes(&file.new)).sum::<usize>() > ALL_BYTES_MAX {
            return Err(ToolError::new(format!(
                "The files of this patch have more than {ALL_BYTES_MAX} bytes together. Split it."
            )));
        }
    }
    plan.files.retain(|file| file.old != file.new || file.moved.is_some());
    if faults.is_empty() && plan.files.is_empty() {
        faults.push("every file is already as the patch would make it".to_owned());
    }
    if faults.is_empty() {
        return Ok(plan);
    }
    let more = faults.len().saturating_sub(FAULTS_SHOWN_MAX);
    faults.truncate(FAULTS_SHOWN_MAX);
    if more > 0 {
        faults.push(format!("and {more} more"));
    }
    Err(ToolError::new(format!("Nothing was changed:\n{}", faults.join("\n"))))
}

impl PatchPlan {
    fn take(
        &mut self,
        file: &FilePatch,
        context: &ToolContext,
        known: Option<&ReadState>,
    ) -> Result<(), ToolError> {
        let workspace = &*context.workspace;
        match file {
            FilePatch::Add { path, text } => {
                let at = self.at(path, context)?;
                if self.files[at].new.is_some() {
                    let name = workspace.display(&self.files[at].real);
                    return Err(ToolError::new(format!(
                        "{name} exists already; change it with `*** Update File: {name}`."
                    )));
                }
                let text = Notebook::written(&self.files[at].real, None, text.clone())?;
                self.files[at].new = Some(text.into_bytes());
            }
            FilePatch::Delete { path } => {
                let at = self.existing(path, context, known)?;
                self.files[at].may_leave(path, workspace)?;
                self.files[at].new = None;
            }
            FilePatch::Update { path, to, hunks } => {
                let at = self.existing(path, context, known)?;
                let name = workspace.display(&self.files[at].real);
                if self.files[at].is_unsaved {
                    context.unsaved.refuse_change(&name)?;
                }
                let old = self.files[at].new.clone().unwrap_or_default();
                if old.contains(&0) {
                    return Err(read_state::binary(&name).into());
                }
                let text = String::from_utf8(old)
                    .map_err(|_| format!("{name} is not UTF-8 text. Change it with a command instead."))?;
                let book = Notebook::read(&self.files[at].real, &text);
                let shown = book.as_ref().map_or(text.as_str(), Notebook::text);
                let mut fitted = fit::fit(shown, hunks).map_err(|why| why.about(&name))?;
                if let Some(book) = book {
                    fitted.text = book.with(&fitted.text).map_err(|why| why.about(&name))?;
                }
                if fitted.text.len() as u64 > disk::FILE_BYTES_MAX {
                    return Err(ToolError::new(format!(
                        "{name} would grow beyond {} bytes.",
                        disk::FILE_BYTES_MAX
                    )));
                }
                self.notes.extend(fitted.notes.iter().map(|note| format!("{name}: {note}.")));
                match to {
                    None => {
                        self.files[at].new = Some(fitted.text.into_bytes());
                        self.files[at].lines.extend(fitted.lines);
                    }
                    Some(to) => {
                        self.files[at].may_leave(path, workspace)?;
                        self.move_to(at, to, fitted, context)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn move_to(
        &mut self,
        from: usize,
        to: &str,
        fitted: fit::PatchedText,
        context: &ToolContext,
    ) -> Result<(), ToolError> {
        let workspace = &*context.workspace;
        let target = self.at(to, context)?;
        let name = workspace.display(&self.files[target].real);
        if target == from {
            return Err(ToolError::new(format!(
                "{name} would be moved to itself; leave `*** Move to:` out."
            )));
        }
        if self.files[target].new.is_some() {
            return Err(ToolError::new(format!("{name} exists already, so nothing is moved there.")));
        }
        let source = &self.files[from];
        let old = source.new.clone().unwrap_or_default();
        let moved = MovedFile { from: source.path.clone(), old, permissions: source.permissions.clone() };
        self.files[from].new = None;
        self.files[from].moved_away = true;
        let target = &mut self.files[target];
        target.new = Some(fitted.text.into_bytes());
        target.lines = fitted.lines;
        target.moved = Some(moved);
        Ok(())
    }

    /// Returns the index of a file in its current state within the patch. The file must exist and be known to the
    /// model.
    fn existing(
        &mut self,
        path: &str,
        context: &ToolContext,
        known: Option<&ReadState>,
    ) -> Result<usize, ToolError> {
        let workspace = &*context.workspace;
        let known_files = self.files.len();
        let at = self.at(path, context)?;
        let is_new = self.files.len() > known_files;
        let file = &self.files[at];
        let Some(content) = &file.new else {
            return Err(disk::trouble("change", &file.real, workspace, io::ErrorKind::NotFound.into()));
        };
        // The model can't read binary files; it may only delete them.
        let is_binary = content.contains(&0);
        if is_new
            && !is_binary
            && let (Some(known), Ok(text)) = (known, std::str::from_utf8(content))
        {
            known.check(
                &file.real,
                &read_state::state_of(content),
                Some(text),
                &workspace.display(&file.real),
            )?;
        }
        Ok(at)
    }

    /// Returns the index of the file in the plan, reading it from the disk on first use.
    fn at(&mut self, path: &str, context: &ToolContext) -> Result<usize, ToolError> {
        let workspace = &*context.workspace;
        let real = context.permitted(path)?;
        if let Some(at) = self.files.iter().position(|file| file.real == real) {
            return Ok(at);
        }
        let (old, is_unsaved, permissions) = match disk::metadata(&real, workspace) {
            Ok(None) => (None, false, None),
            Err(error) => return Err(disk::trouble("change", &real, workspace, error)),
            Ok(Some(metadata)) => {
                let CurrentContent { bytes, is_unsaved } = disk::current(&real, context)?;
                (Some(bytes), is_unsaved, Some(metadata.permissions()))
            }
        };
        self.files.push(PlannedFile {
            path: workspace.target(&real),
            real,
            is_unsaved,
            new: old.clone(),
            old,
            permissions,
            lines: Vec::new(),
            moved: None,
            moved_away: false,
        });
        Ok(self.files.len() - 1)
    }

    /// Writes all files or none. Deletions come last, so that moved text exists somewhere at any time. Changes that the
    /// user saves in the meantime are kept. `written` is called after each file.
    fn write(
        &mut self,
        context: &ToolContext,
        stop: &CancelFlag,
        mut written: impl FnMut(),
    ) -> Result<(), ToolError> {
        let workspace = &*context.workspace;
        let (writes, removals): (Vec<&PlannedFile>, Vec<&PlannedFile>) =
            self.files.iter().partition(|file| file.new.is_some());
        let mut done: Vec<(&PlannedFile, Option<Saved>)> = Vec::new();
        let result = writes.into_iter().chain(removals).try_for_each(|file| {
            // A cancelled call leaves nothing half-written.
            if stop.requested() {
                return Err(disk::trouble("write", &file.real, workspace, io::Error::other("cancelled")));
            }
            done.push((file, file.apply(context, stop)?));
            written();
            Ok(())
        });
        let Err(why) = result else {
            for (file, saved) in done {
                let Some(saved) = saved else { continue };
                let note = format!("{}: {}", workspace.display(&file.real), saved.note());
                self.notes_shown.extend(saved.shown(&note));
                self.notes.push(note);
            }
            return Ok(());
        };
        let stuck: Vec<String> = done
            .iter()
            .rev()
            .filter(|(file, saved)| file.roll_back(*saved, context).is_err())
            .map(|(file, _)| workspace.display(&file.real))
            .collect();
        Err(why.reworded(|why| match stuck.is_empty() {
            true => format!("{why} No file was changed: earlier writes were rolled back."),
            false => format!("{why} Earlier writes could not be rolled back in {}.", stuck.join(", ")),
        }))
    }

    fn shown(&self) -> Vec<ToolDisplay> {
        let moved = self.files.iter().filter_map(|file| {
            let from = file.moved.as_ref()?.from.display();
            Some(ToolDisplay::Text { text: format!("Moves {from} to {}.", file.path.display()) })
        });
        let shown = self.files.iter().filter(|file| !file.moved_away).map(|file| {
            let old = file.moved.as_ref().map(|moved| &moved.old).or(file.old.as_ref());
            let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).ok();
            let new = file.new.as_ref().map_or(Some(String::new()), text);
            match (old.map(text), new) {
                (None, Some(new)) => ToolDisplay::Diff { path: file.path.clone(), old: None, new },
                (Some(Some(old)), Some(new)) => {
                    ToolDisplay::Diff { path: file.path.clone(), old: Some(old), new }
                }
                (_, _) => {
                    ToolDisplay::Text { text: format!("Deletes {}, which is not text.", file.path.display()) }
                }
            }
        });
        moved.chain(shown).chain(self.notes_shown.iter().cloned()).collect()
    }

    fn report(&self, workspace: &Workspace) -> String {
        let mut lines: Vec<String> = Vec::new();
        for file in &self.files {
            let name = workspace.display(&file.real);
            let at = match file.lines.as_slice() {
                [] => String::new(),
                [line] => format!(" at line {line}"),
                lines => format!(" at lines {}", listed(lines)),
            };
            let line = match (&file.moved, &file.old, &file.new) {
                (Some(moved), _, _) => format!(
                    "Moved {} to {name}{}",
                    workspace.display(&moved.from),
                    if at.is_empty() { String::new() } else { format!(" and edited it{at}") }
                ),
                (None, _, None) if file.moved_away => continue,
                (None, _, None) => format!("Deleted {name}"),
                (None, None, Some(_)) => format!("Created {name}"),
                (None, Some(_), Some(_)) => format!("Edited {name}{at}"),
            };
            lines.push(format!("{line}."));
        }
        lines.extend(self.notes.iter().cloned());
        lines.join("\n")
    }
}

impl PlannedFile {
    /// Refuses to remove a file with unsaved text, because the editor would keep that text, and one that is named by a
    /// link, because the link would stay.
    fn may_leave(&self, named: &str, workspace: &Workspace) -> Result<(), ToolError> {
        let name = workspace.display(&self.real);
        let why = match (self.is_unsaved, workspace.resolve(named).is_symlink()) {
            (false, false) => return Ok(()),
            (true, _) => "has changes in the user's editor that are not saved, so it is neither deleted nor moved. Ask the user to \
                          save it first.".to_owned(),
            (false, true) => format!("was named by a link, {named}, so it is neither deleted nor moved. Remove the link with a command, or \
                                      name {name} if you mean the file."),
        };
        Err(ToolError::new(format!("{name} {why}")))
    }

    /// Returns an error if the file no longer has the content `known`: it was saved while the patch was applied.
    fn check_is(&self, known: Option<&[u8]>, context: &ToolContext) -> Result<(), ToolError> {
        let workspace = &*context.workspace;
        let now = match disk::metadata(&self.real, workspace) {
            Ok(None) => None,
            Ok(Some(_)) => Some(disk::current(&self.real, context)?.bytes),
            Err(error) => return Err(disk::trouble("change", &self.real, workspace, error)),
        };
        match now.as_deref() == known {
            true => Ok(()),
            false => Err(ToolError::new(format!(
                "{} was changed at this moment; read it again.",
                workspace.display(&self.real)
            ))),
        }
    }

    /// Writes, removes or creates the file as planned. Returns whether it is saved if an editor accepted the text;
    /// otherwise `None`.
    fn apply(&self, context: &ToolContext, stop: &CancelFlag) -> Result<Option<Saved>, ToolError> {
        self.check_is(self.old.as_deref(), context)?;
        let permissions = self.moved.as_ref().and_then(|moved| moved.permissions.as_ref());
        self.put(self.new.as_deref(), permissions, context, stop)
    }

    /// Restores the old file. `saved` is the result of `apply`: the form that an editor gave the text is not known.
    fn roll_back(&self, saved: Option<Saved>, context: &ToolContext) -> Result<(), ToolError> {
        if matches!(saved, None | Some(Saved::Detached)) {
            self.check_is(self.new.as_deref(), context)?;
        }
        // A file that was neither removed nor replaced by a moved one still has its permissions.
        let is_other = self.new.is_none() || self.moved.is_some();
        let permissions = self.permissions.as_ref().filter(|_| is_other);
        self.put(self.old.as_deref(), permissions, context, &CancelFlag::default()).map(drop)
    }

    fn put(
        &self,
        content: Option<&[u8]>,
        permissions: Option<&Permissions>,
        context: &ToolContext,
        stop: &CancelFlag,
    ) -> Result<Option<Saved>, ToolError> {
        let trouble = |error: io::Error| disk::trouble("write", &self.real, &context.workspace, error);
        let Some(content) = content else {
            return disk::remove(&self.real, &context.workspace).map(|()| None).map_err(trouble);
        };
        let saved = match std::str::from_utf8(content) {
            Ok(text) => disk::put(&self.real, text, self.is_unsaved, context, stop)?,
            Err(_) => disk::replace(&self.real, content, &context.workspace, stop).map_err(trouble)?,
        };
        if let Some(permissions) = permissions {
            let (file, _) = disk::open(&self.real, &context.workspace)?;
            file.set_permissions(permissions.clone()).map_err(trouble)?;
        }
        Ok(saved)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use super::*;

    /// A patch of many files took seconds on a slow disk. Changes that the user saved meanwhile, in a file whose turn
    /// had not come yet, were overwritten or deleted. The rollback gave a private file that it restored to everyone.
    #[test]
    fn a_save_during_a_patch_is_kept() {
        let patch = "*** Begin Patch\n\
                     *** Update File: first\n@@\n-old\n+new\n\
                     *** Delete File: private\n\
                     *** Update File: edited\n@@\n-old\n+new\n\
                     *** Update File: moved\n*** Move to: target\n@@\n-old\n+new\n\
                     *** Delete File: deleted\n\
                     *** End Patch";
        let names = ["first", "private", "edited", "moved", "deleted"];
        // The file that the user saves, and the number of files that are written before.
        for (typed, after) in [("edited", 1), ("moved", 3), ("deleted", 3), ("target", 1), ("first", 1)] {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let base = directory.path().canonicalize().expect("it is there");
            for name in names {
                fs::write(base.join(name), "old\n").expect("written");
            }
            fs::set_permissions(base.join("private"), Permissions::from_mode(0o600)).expect("set");
            let context = ToolContext::bare(Arc::new(Workspace::new(&base, Vec::new(), Arc::default())));
            let files = parse::parse(patch).expect("a patch");
            let mut plan = plan(&files, &context, None).expect("it fits");
            let mut count = 0;
            let stop = CancelFlag::default();
            let save = || {
                count += 1;
                if count == after {
                    fs::write(base.join(typed), "typed\n").expect("saved");
                    // With a file that was written already, something else has to fail.
                    if typed == "first" {
                        fs::write(base.join("deleted"), "typed\n").expect("saved");
                    }
                }
            };
            let why = plan.write(&context, &stop, save).expect_err(typed);
            let (changed, end) = match typed {
                "first" => ("deleted", "Earlier writes could not be rolled back in first."),
                other => (other, "No file was changed: earlier writes were rolled back."),
            };
            assert_eq!(
                why.to_string(),
                format!("{changed} was changed at this moment; read it again. {end}")
            );
            for name in names {
                let expected = if name == typed || name == changed { "typed\n" } else { "old\n" };
                assert_eq!(fs::read_to_string(base.join(name)).expect(name), expected, "{typed}: {name}");
            }
            assert_eq!(base.join("target").exists(), typed == "target");
            let mode = fs::metadata(base.join("private")).expect("restored").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    fn workspace() -> (tempfile::TempDir, ToolContext) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = directory.path().canonicalize().expect("it is there");
        fs::write(base.join("file"), "old\n").expect("written");
        let context = ToolContext::bare(Arc::new(Workspace::new(&base, Vec::new(), Arc::default())));
        (directory, context)
    }

    fn planned(patch: &str, context: &ToolContext) -> Result<PatchPlan, ToolError> {
        let patch = format!("*** Begin Patch\n{patch}\n*** End Patch");
        plan(&parse::parse(&patch).expect("a patch"), context, None)
    }

    /// Regression: a user whose AGENTS.md was a link to CLAUDE.md had the link deleted. Its target was deleted instead, and
    /// the link stayed.
    #[test]
    fn a_link_is_neither_deleted_nor_moved() {
        let (directory, context) = workspace();
        std::os::unix::fs::symlink("file", directory.path().join("link")).expect("linked");
        for patch in ["*** Delete File: link", "*** Update File: link\n*** Move to: new\n@@\n-old\n+new"] {
            let why = planned(patch, &context).map(drop).expect_err("it would stay");
            assert!(why.to_string().contains("file was named by a link, link,"), "{why}");
        }
        assert!(planned("*** Update File: link\n@@\n-old\n+new", &context).is_ok());
        assert!(planned("*** Delete File: file", &context).is_ok());
    }

    /// Regression: a user saw only the diff of a file whose other name kept the old content; the model alone was told.
    #[test]
    fn other_names_of_a_file_are_shown_to_the_person() {
        let (directory, context) = workspace();
        fs::hard_link(directory.path().join("file"), directory.path().join("other")).expect("linked");
        let mut plan = planned("*** Update File: file\n@@\n-old\n+new", &context).expect("it fits");
        plan.write(&context, &CancelFlag::default(), || ()).expect("written");
        let [ToolDisplay::Diff { .. }, ToolDisplay::Text { text }] = &plan.shown()[..] else {
            panic!("a diff and a note");
        };
        assert!(text.starts_with("file: The file had other names"), "{text}");
        assert!(plan.report(&context.workspace).ends_with(text));
    }
}
