//! `view_image`: sends an image file to the model. The type is detected from the first bytes of the file, never from
//! its name.

use std::io::Read;

use serde_json::Value;

use super::schema::{self, InputKey};
use super::{
    Access, BoxFuture, ParsedTool, ToolContext, ToolError, ToolResult, Workspace, attached, disk, input,
};
use epitome_thread::attached::FileType;
use epitome_thread::{CallDisplay, ToolKind, ToolSpec};

/// Number of bytes needed to detect the type.
const HEAD_BYTES: u64 = 64;

pub struct ViewImage;

impl ParsedTool for ViewImage {
    type Call = String;

    fn spec(&self) -> ToolSpec {
        let path = "The image: absolute, or relative to the workspace's directory.";
        schema::spec(
            "view_image",
            "Shows you an image file (png, jpeg, gif, webp): a screenshot, a diagram, a plot that a command has made.",
            [InputKey::text("path", path).required()],
        )
    }

    fn display(&self, input: &Value, workspace: &Workspace) -> CallDisplay {
        disk::display("View", ToolKind::Read, ("path", "an image"), input, workspace)
    }

    fn parse(&self, input: &Value, _: &Workspace) -> Result<String, ToolError> {
        input::named(input, "path")
    }

    fn access(&self, path: String, workspace: &Workspace) -> Result<Access, ToolError> {
        Ok(Access::Read(vec![workspace.real(&path)]))
    }

    fn run(&self, path: String, context: ToolContext) -> BoxFuture<ToolResult> {
        disk::run(context, move |context, _| view(&path, context))
    }
}

fn view(path: &str, context: &ToolContext) -> Result<ToolResult, ToolError> {
    let workspace = &*context.workspace;
    let real = context.permitted(path)?;
    let (mut file, _) = disk::open(&real, workspace)?;
    let mut head = Vec::new();
    let read = (&mut file).take(HEAD_BYTES).read_to_end(&mut head);
    read.map_err(|error| disk::trouble("read", &real, workspace, error))?;
    match FileType::detect(&head).filter(|kind| attached::is_image(*kind)) {
        Some(kind) => attached::read(kind, head, file, &real, context),
        None => Err(ToolError::new(format!(
            "{} is not an image that a model can see: it is not a png, jpeg, gif or webp file. Read it \
             with file_read, or convert it with a command.",
            workspace.display(&real)
        ))),
    }
}
