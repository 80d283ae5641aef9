//! Notebooks (`.ipynb`) as text: their cells with sources and outputs. `file_read` shows this text, and the edit tools
//! change it. Parts that it doesn't show, such as metadata and pictures, stay as they are. Pure.

use std::path::Path;

use serde::Serialize as _;
use serde_json::ser::{PrettyFormatter, Serializer};
use serde_json::{Value, json};

use super::truncate;
use crate::ToolError;

const OUTPUT_BYTES_MAX: usize = 2_000;

/// From this minor version of format 4 on, cells have ids.
const MINOR_WITH_IDS: u64 = 5;

/// A notebook before its cells are put into it.
const NO_CELLS: &str =
    "{\n \"cells\": [],\n \"metadata\": {},\n \"nbformat\": 4,\n \"nbformat_minor\": 5\n}\n";

const CELL_END: &str = "</cell>";
const OUTPUT_END: &str = "</output>";

/// A notebook whose cells can be shown and edited as text.
pub struct Notebook {
    whole: Value,
    /// The indentation of its JSON; `None` if all of it is in one line.
    indent: Option<usize>,
    ends_with_line: bool,
    text: String,
}

#[derive(Debug, PartialEq)]
enum Part {
    /// `number` is that of the cell in the notebook, from 1; new cells have none.
    Cell {
        number: Option<usize>,
        kind: String,
        source: String,
    },
    Output {
        number: usize,
        shown: String,
    },
}

impl Notebook {
    /// Reads a notebook; `None` if it is none, or if its text couldn't be converted back.
    pub fn read(path: &Path, json: &str) -> Option<Notebook> {
        if path.extension().is_none_or(|extension| extension != "ipynb") {
            return None;
        }
        let whole: Value = serde_json::from_str(json).ok()?;
        let parts: Vec<Part> = whole["cells"]
            .as_array()?
            .iter()
            .enumerate()
            .flat_map(|(at, cell)| parts_of(at + 1, cell))
            .collect();
        let text: String = parts.iter().map(Part::text).collect();
        if parse(&text).ok()? != parts {
            return None;
        }
        let indent = json.split_once('\n').map(|(_, rest)| rest.len() - rest.trim_start_matches(' ').len());
        Some(Notebook { whole, indent, ends_with_line: json.ends_with('\n'), text })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text to write for the complete new text of a file: if that is the text of a notebook's cells, its JSON. Parts
    /// of the old file that the cells don't show are kept. The error is for the model.
    pub fn written(path: &Path, old: Option<&str>, text: String) -> Result<String, ToolError> {
        let is_json = || serde_json::from_str::<Value>(&text).is_ok();
        if path.extension().is_none_or(|extension| extension != "ipynb") || is_json() {
            return Ok(text);
        }
        let book = old.and_then(|json| Notebook::read(path, json)).or_else(|| Notebook::read(path, NO_CELLS));
        book.map_or(Ok(text.clone()), |book| book.with(&text))
    }

    /// Returns the notebook's JSON after an edit of its text. The error is for the model.
    pub fn with(self, edited: &str) -> Result<String, ToolError> {
        let Notebook { mut whole, indent, ends_with_line, text: _ } = self;
        let has_ids =
            whole["nbformat"] == 4 && whole["nbformat_minor"].as_u64().unwrap_or(0) >= MINOR_WITH_IDS;
        let old = std::mem::take(&mut whole["cells"]);
        let old = old.as_array().map(Vec::as_slice).unwrap_or_default();
        let (mut cells, mut seen) = (Vec::new(), vec![false; old.len()]);
        for part in parse(edited)? {
            match part {
                Part::Output { number, shown } => {
                    let is_same =
                        old.get(number.wrapping_sub(1)).and_then(output_of).is_some_and(|own| own == shown);
                    if !is_same {
                        return Err(ToolError::new(format!(
                            "The output of cell {number} can't be edited. An edit of the cell's code clears it."
                        )));
                    }
                }
                Part::Cell { number: Some(number), kind, source } => {
                    let at = number.wrapping_sub(1);
                    let cell = old.get(at).filter(|_| !std::mem::replace(&mut seen[at], true));
                    let cell = cell.ok_or_else(|| {
                        format!("There is no cell {number}, or it is there twice. New cells have no number: <cell code>.")
                    })?;
                    cells.push(changed(cell.clone(), &kind, &source));
                }
                Part::Cell { number: None, kind, source } => {
                    let mut cell = json!({ "cell_type": kind });
                    if has_ids {
                        cell["id"] = format!("{:08x}", fastrand::u32(..)).into();
                    }
                    cell["metadata"] = json!({});
                    cell["source"] = json!([]);
                    cells.push(changed(cell, &kind, &source));
                }
            }
        }
        whole["cells"] = cells.into();
        let mut json = Vec::new();
        match indent {
            Some(width) => {
                let indent = vec![b' '; width];
                let mut out = Serializer::with_formatter(&mut json, PrettyFormatter::with_indent(&indent));
                whole.serialize(&mut out).map_err(|error| ToolError::caused(error.to_string(), error))?;
            }
            None => serde_json::to_writer(&mut json, &whole)
                .map_err(|error| ToolError::caused(error.to_string(), error))?,
        }
        if ends_with_line {
            json.push(b'\n');
        }
        String::from_utf8(json).map_err(|error| ToolError::caused(error.to_string(), error))
    }
}

impl Part {
    fn text(&self) -> String {
        match self {
            Part::Cell { number: Some(number), kind, source } => {
                format!("<cell {number} {kind}>\n{source}\n{CELL_END}\n")
            }
            Part::Cell { number: None, kind, source } => format!("<cell {kind}>\n{source}\n{CELL_END}\n"),
            Part::Output { number, shown } => format!("<output of cell {number}>\n{shown}\n{OUTPUT_END}\n"),
        }
    }
}

fn parts_of(number: usize, cell: &Value) -> Vec<Part> {
    let kind = cell["cell_type"].as_str().unwrap_or("raw").to_owned();
    let mut parts = vec![Part::Cell { number: Some(number), kind, source: joined(&cell["source"]) }];
    parts.extend(output_of(cell).map(|shown| Part::Output { number, shown }));
    parts
}

/// The outputs of a cell as they are shown; `None` if there is none.
fn output_of(cell: &Value) -> Option<String> {
    let outputs = cell["outputs"].as_array().filter(|outputs| !outputs.is_empty())?;
    let texts: Vec<String> = outputs.iter().map(shown).collect();
    Some(truncate::line(texts.join("\n").trim_end(), OUTPUT_BYTES_MAX).to_string())
}

fn shown(output: &Value) -> String {
    if output["output_type"] == "error" {
        let text = |name: &str| output[name].as_str().unwrap_or_default();
        return format!("{}: {}", text("ename"), text("evalue"));
    }
    if !output["text"].is_null() {
        return joined(&output["text"]);
    }
    let data = &output["data"];
    if !data["text/plain"].is_null() {
        return joined(&data["text/plain"]);
    }
    let kinds: Vec<&str> = data.as_object().into_iter().flatten().map(|(kind, _)| kind.as_str()).collect();
    format!("[{}]", kinds.join(", "))
}

/// A text, or a list of its lines.
fn joined(text: &Value) -> String {
    match text {
        Value::String(text) => text.clone(),
        Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect(),
        _ => String::new(),
    }
}

/// A cell with this source and of this kind. The outputs of changed code are cleared.
fn changed(mut cell: Value, kind: &str, source: &str) -> Value {
    let is_same_kind = cell["cell_type"] == kind;
    if is_same_kind && joined(&cell["source"]) == source && (kind != "code" || !cell["outputs"].is_null()) {
        return cell;
    }
    cell["cell_type"] = kind.into();
    cell["source"] = match cell["source"] {
        Value::String(_) => source.into(),
        _ => source.split_inclusive('\n').collect::<Vec<_>>().into(),
    };
    if kind == "code" {
        cell["execution_count"] = Value::Null;
        cell["outputs"] = json!([]);
    } else if let Some(fields) = cell.as_object_mut() {
        fields.retain(|name, _| name != "execution_count" && name != "outputs");
    }
    cell
}

fn parse(text: &str) -> Result<Vec<Part>, ToolError> {
    let mut parts = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim().is_empty() {
            continue;
        }
        let head = line.strip_prefix('<').and_then(|line| line.strip_suffix('>')).unwrap_or_default();
        let words: Vec<&str> = head.split(' ').collect();
        let number = |word: &str| word.parse::<usize>().ok();
        let cell = |number, kind: &str| Part::Cell { number, kind: kind.to_owned(), source: String::new() };
        let (end, mut part) = match words.as_slice() {
            ["cell", kind @ ("code" | "markdown" | "raw")] => (CELL_END, cell(None, kind)),
            ["cell", at, kind @ ("code" | "markdown" | "raw")] if let Some(at) = number(at) => {
                (CELL_END, cell(Some(at), kind))
            }
            ["output", "of", "cell", at] if let Some(number) = number(at) => {
                (OUTPUT_END, Part::Output { number, shown: String::new() })
            }
            _ => {
                return Err(ToolError::new(format!(
                    "Between cells there is {:?}. A cell is <cell code> or <cell markdown>, its lines, and {CELL_END}.",
                    truncate::line(line, 100)
                )));
            }
        };
        let mut inside = Vec::new();
        loop {
            match lines.next() {
                Some(line) if line == end => break,
                Some(line) => inside.push(line),
                None => {
                    return Err(ToolError::new(format!(
                        "A cell has no end: {end} is missing after {line:?}."
                    )));
                }
            }
        }
        let (Part::Cell { source: text, .. } | Part::Output { shown: text, .. }) = &mut part;
        *text = inside.join("\n");
        parts.push(part);
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOK: &str = r##"{
 "cells": [
  {
   "cell_type": "markdown",
   "id": "aa",
   "metadata": {},
   "source": [
    "# Title"
   ]
  },
  {
   "cell_type": "code",
   "execution_count": 7,
   "id": "bb",
   "metadata": {
    "tags": [
     "keep"
    ]
   },
   "outputs": [
    {
     "name": "stdout",
     "output_type": "stream",
     "text": [
      "2\n"
     ]
    }
   ],
   "source": [
    "x = 1\n",
    "print(x + 1)"
   ]
  }
 ],
 "metadata": {},
 "nbformat": 4,
 "nbformat_minor": 5
}
"##;

    fn book() -> Notebook {
        Notebook::read(Path::new("/w/a.ipynb"), BOOK).expect("a notebook")
    }

    #[test]
    fn cells_are_shown_with_their_outputs_and_come_back_unchanged() {
        let text = "<cell 1 markdown>\n# Title\n</cell>\n<cell 2 code>\nx = 1\nprint(x + 1)\n</cell>\n\
                    <output of cell 2>\n2\n</output>\n";
        assert_eq!(book().text(), text);
        assert_eq!(book().with(text).as_deref(), Ok(BOOK));
        assert!(Notebook::read(Path::new("/w/a.json"), BOOK).is_none());
        assert!(Notebook::read(Path::new("/w/a.ipynb"), "{").is_none());
        // A source that looks like the end of its cell.
        assert!(Notebook::read(Path::new("/w/a.ipynb"), &BOOK.replace("x = 1", "</cell>")).is_none());
    }

    #[test]
    fn an_edit_changes_one_cell_and_clears_its_outputs() {
        let edited = book().text().replace("x = 1", "x = 2");
        let json = book().with(&edited).expect("an edit");
        let whole: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(whole["cells"][0]["source"], json!(["# Title"]));
        let cell = &whole["cells"][1];
        assert_eq!(cell["source"], json!(["x = 2\n", "print(x + 1)"]));
        assert_eq!((&cell["outputs"], &cell["execution_count"]), (&json!([]), &Value::Null));
        assert_eq!((&cell["id"], &cell["metadata"]["tags"]), (&json!("bb"), &json!(["keep"])));
    }

    /// `file_read` showed a notebook as cells, a model wrote it back in that form, and the file was no notebook any more.
    #[test]
    fn a_notebook_that_is_written_as_cells_becomes_one() {
        let (path, text) = (Path::new("/w/a.ipynb"), book().text().replace("x = 1", "x = 2"));
        let written = |old: Option<&str>, text: &str| Notebook::written(path, old, text.to_owned());
        assert_eq!(written(Some(BOOK), &text), book().with(&text));
        let new = written(None, "<cell code>\ny = 3\n</cell>\n").expect("a notebook");
        assert_eq!(Notebook::read(path, &new).expect("a notebook").text(), "<cell 1 code>\ny = 3\n</cell>\n");
        assert!(written(None, "<cell 3 code>\ny = 3\n</cell>\n").is_err());
        assert_eq!(written(Some(BOOK), BOOK).as_deref(), Ok(BOOK));
        assert_eq!(Notebook::written(Path::new("/w/a.md"), None, text.clone()), Ok(text));
    }

    #[test]
    fn cells_are_added_moved_and_removed() {
        let text = "<cell code>\ny = 3\n</cell>\n<cell 2 code>\nx = 1\nprint(x + 1)\n</cell>\n";
        let whole: Value = serde_json::from_str(&book().with(text).expect("an edit")).expect("JSON");
        assert_eq!(whole["cells"].as_array().map(Vec::len), Some(2));
        let added = &whole["cells"][0];
        assert_eq!((&added["cell_type"], &added["source"]), (&json!("code"), &json!(["y = 3"])));
        assert!(added["id"].is_string() && added["outputs"] == json!([]), "{added}");
        assert_eq!(whole["cells"][1]["execution_count"], 7, "unchanged code keeps its outputs");
    }

    #[test]
    fn what_is_no_notebook_any_more_is_refused() {
        for (from, to, why) in [
            ("\n2\n</output>", "\n3\n</output>", "The output of cell 2 can't be edited"),
            ("<cell 2 code>", "<cell 1 code>", "There is no cell 1, or it is there twice"),
            ("<cell 2 code>", "<cell 9 code>", "There is no cell 9"),
            ("<cell 2 code>", "<cell 0 code>", "There is no cell 0"),
            ("<cell 2 code>", "<cell 2 rust>", "Between cells there is"),
            ("print(x + 1)\n</cell>", "print(x + 1)", "</cell> is missing"),
        ] {
            let error = book().with(&book().text().replace(from, to)).expect_err(to);
            assert!(error.to_string().contains(why), "{to}: {error}");
        }
    }
}
