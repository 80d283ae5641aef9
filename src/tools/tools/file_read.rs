//! `file_read`: returns a file's text with line numbers, an image, or a PDF document. Reads regular files only, and
//! displays no more of a large one than requested.

use std::io::{self, BufRead, BufReader, Read};

use serde_json::Value;

use epitome_thread::attached::FileType;
use epitome_thread::{CallDisplay, Location, ToolKind, ToolSpec};

use super::disk::CancelFlag;
use super::notebook::Notebook;
use super::schema::{self, InputKey};
use super::{
    Access, BoxFuture, Needs, ParsedTool, ToolContext, ToolError, ToolResult, Workspace, attached, buffers,
    disk, input, read_state, truncate,
};

/// Default number of lines.
pub const LINES: u64 = 2_000;

/// Maximum bytes of text per call: the limit for one tool result, so that the model gets consecutive lines and can
/// continue with the next call.
pub const TEXT_BYTES_MAX: usize = truncate::OUTPUT_BYTES_MAX;

/// Maximum bytes after the last displayed line that are read to count the remaining lines: a tenth of a second.
const COUNTED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Bytes examined to distinguish text from other content.
const SNIFF_BYTES: usize = 8 * 1024;

pub struct FileRead;

impl ParsedTool for FileRead {
    type Call = FileReadCall;
    const NEEDS: Needs = Needs::EditorBuffers;

    fn spec(&self) -> ToolSpec {
        let description = format!(
            "Reads a file. Each line comes with its number and a tab before it; they are not part of the \
             file, so leave them out of file_edit's old_text. Reads {LINES} lines from the beginning unless \
             offset and line_limit say otherwise, and says how to go on when there is more. Also shows \
             images (png, jpeg, gif, webp), PDF documents, and notebooks as cells, which are edited as they are \
             shown. Use glob_tool to list directories."
        );
        schema::spec(
            "file_read",
            description,
            [
                InputKey::text("file_path", schema::FILE).required(),
                InputKey::number("offset", "The first line to read, from 1."),
                InputKey::number("line_limit", "How many lines to read."),
            ],
        )
    }

    fn display(&self, input: &Value, workspace: &Workspace) -> CallDisplay {
        let mut card = disk::display("Read", ToolKind::Read, ("file_path", "a file"), input, workspace);
        let offset = input::whole(input, "offset").ok().flatten().filter(|offset| *offset > 1);
        if let Some(offset) = offset {
            card.title.push_str(&format!(" from line {offset}"));
        }
        for location in &mut card.locations {
            location.line = u32::try_from(offset.unwrap_or(1)).ok();
        }
        card
    }

    fn parse(&self, input: &Value, _: &Workspace) -> Result<FileReadCall, ToolError> {
        Ok(FileReadCall {
            path: input::named(input, "file_path")?,
            offset: input::whole(input, "offset")?.unwrap_or(1).max(1),
            limit: input::whole(input, "line_limit")?.filter(|limit| *limit > 0).unwrap_or(LINES),
        })
    }

    fn access(&self, call: FileReadCall, workspace: &Workspace) -> Result<Access, ToolError> {
        Ok(Access::Read(vec![workspace.real(&call.path)]))
    }

    fn run(&self, call: FileReadCall, context: ToolContext) -> BoxFuture<ToolResult> {
        disk::run(context, move |context, stop| read(&call, context, stop))
    }
}

pub struct FileReadCall {
    path: String,
    /// The number of the first line, from 1.
    offset: u64,
    limit: u64,
}

fn read(call: &FileReadCall, context: &ToolContext, stop: &CancelFlag) -> Result<ToolResult, ToolError> {
    let workspace = &*context.workspace;
    let real = context.permitted(&call.path)?;
    let (mut file, metadata) = disk::open(&real, workspace)?;
    let unreadable = |error: io::Error| disk::trouble("read", &real, workspace, error);
    let mut start = Vec::with_capacity(SNIFF_BYTES);
    (&mut file).take(SNIFF_BYTES as u64).read_to_end(&mut start).map_err(unreadable)?;
    if let Some(kind) = FileType::detect(&start) {
        return attached::read(kind, start, file, &real, context);
    }
    // PowerShell's `>` writes UTF-16. A file that is too large to be decoded at once is binary, as without its mark.
    let utf16 = encoding_rs::Encoding::for_bom(&start).map(|(encoding, _)| encoding);
    let utf16 = utf16.filter(|it| *it != encoding_rs::UTF_8 && metadata.len() <= disk::FILE_BYTES_MAX);
    if start.contains(&0) && utf16.is_none() {
        return Err(ToolError::new(format!(
            "{} is a binary file of {} bytes, not text. Look into it with a command if you must, for example \
             `file` or `xxd`.",
            workspace.display(&real),
            metadata.len()
        )));
    }
    // Read as much as an edit could handle, regardless of the requested part: the recorded state is that of the
    // entire file.
    (&mut file)
        .take(disk::FILE_BYTES_MAX - start.len() as u64)
        .read_to_end(&mut start)
        .map_err(unreadable)?;
    let unsaved = context.unsaved.text(&real, &start).map(|text| text.as_bytes().to_vec());
    let is_unsaved = unsaved.is_some();
    let start = unsaved.unwrap_or(start);
    let state = match metadata.len() <= disk::FILE_BYTES_MAX {
        true => read_state::state_of(&start),
        false => read_state::state_of_large(&metadata),
    };
    let start = match utf16 {
        Some(encoding) => encoding.decode(&start).0.into_owned().into_bytes(),
        None => start,
    };
    let book = std::str::from_utf8(&start).ok().and_then(|text| Notebook::read(&real, text));
    let start = book.map_or(start, |book| book.text().as_bytes().to_vec());
    let rest = disk::Stoppable { file, stop };
    let page = page(BufReader::new(io::Cursor::new(start).chain(rest)), call).map_err(unreadable)?;
    let location = Location {
        path: workspace.target(&real),
        line: u32::try_from(call.offset).ok().filter(|_| page.shown > 0),
    };
    let mut text = page.text(call, &workspace.display(&real))?;
    if utf16.is_some() {
        text.push_str("\n[the file is UTF-16; only a command can change it]");
    }
    if is_unsaved {
        text.push_str(&format!("\n{}", buffers::NOTE));
    }
    let known = [(real, Some(state))];
    context.files.note(&known);
    let raw = Some(read_state::raw(&known));
    Ok(ToolResult { locations: vec![location], raw, ..ToolResult::with_file_text(text) })
}

/// The part of a file that one call displays.
#[derive(Default)]
struct FilePage {
    numbered: String,
    shown: u64,
    /// Number of lines read, usually those of the entire file.
    total: u64,
    /// Whether the rest was too long to be counted.
    uncounted: bool,
    /// Whether invalid UTF-8 was replaced.
    replaced: bool,
}

impl FilePage {
    fn text(self, call: &FileReadCall, name: &str) -> Result<String, ToolError> {
        if self.total == 0 {
            return Ok(format!("({name} is empty)"));
        }
        if self.shown == 0 {
            return Err(ToolError::new(format!(
                "{name} has only {} lines; there is none from line {} on.",
                self.total, call.offset
            )));
        }
        let mut text = self.numbered;
        if self.replaced {
            text.push_str("\n[some bytes are not UTF-8 and are shown as \u{fffd}]");
        }
        let next = call.offset + self.shown;
        if self.uncounted {
            text.push_str(&format!("\n[lines {next}-… remain: offset={next}]"));
        } else if next <= self.total {
            text.push_str(&format!("\n[lines {next}-{} remain: offset={next}]", self.total));
        }
        Ok(text)
    }
}

fn page(mut source: impl BufRead, call: &FileReadCall) -> io::Result<FilePage> {
    let mut page = FilePage::default();
    let mut full = false;
    let mut counted = 0;
    while let Some(line) = next_line(&mut source)? {
        page.total += 1;
        if full {
            counted += (line.start.len() + line.left_out) as u64;
            page.uncounted = counted > COUNTED_BYTES_MAX;
            if page.uncounted {
                break;
            }
        }
        if page.total < call.offset || full {
            continue;
        }
        let text = String::from_utf8_lossy(&line.start);
        // A truncated line may end in an incomplete character, which isn't the file's fault.
        let text = if line.left_out > 0 { text.trim_end_matches('\u{fffd}') } else { &text };
        let mut shown = format!("{:>6}\t{text}", page.total);
        if line.left_out > 0 {
            shown.push_str(&format!("… [{} bytes of this line left out]", line.left_out));
        }
        // Always display at least one line, so that every page makes progress.
        if page.shown > 0 && page.numbered.len() + shown.len() > TEXT_BYTES_MAX {
            full = true;
            continue;
        }
        page.replaced |= std::str::from_utf8(&line.start).is_err() && text.contains('\u{fffd}');
        if page.shown > 0 {
            page.numbered.push('\n');
        }
        page.numbered.push_str(&shown);
        page.shown += 1;
        full = page.shown == call.limit;
    }
    Ok(page)
}

struct DisplayLine {
    start: Vec<u8>,
    left_out: usize,
}

/// Reads a line, keeping no more of it in memory than is displayed.
fn next_line(source: &mut impl BufRead) -> io::Result<Option<DisplayLine>> {
    let mut line = DisplayLine { start: Vec::new(), left_out: 0 };
    let mut any = false;
    loop {
        let available = match source.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if available.is_empty() {
            return Ok(any.then_some(line));
        }
        any = true;
        let end = available.iter().position(|byte| *byte == b'\n');
        let piece = &available[..end.unwrap_or(available.len())];
        let space = truncate::LINE_BYTES_MAX - line.start.len();
        line.start.extend_from_slice(&piece[..piece.len().min(space)]);
        line.left_out += piece.len().saturating_sub(space);
        let taken = piece.len() + usize::from(end.is_some());
        source.consume(taken);
        if end.is_some() {
            if line.left_out == 0 && line.start.last() == Some(&b'\r') {
                line.start.pop();
            }
            return Ok(Some(line));
        }
    }
}
