//! Pages of a server's lists: servers repeat cursors and tools, and send tools that are none. Pure.

use std::collections::BTreeSet;

use rmcp::model::{PaginatedRequestParams, Tool};
use serde_json::{Value, json};

use super::listed::{RawListing, short};

/// The cursors of a list that is read page by page.
#[derive(Debug, Default)]
pub struct Cursors {
    next: Option<String>,
    seen: BTreeSet<String>,
}

impl Cursors {
    pub fn params(&self) -> PaginatedRequestParams {
        let mut params = PaginatedRequestParams::default();
        params.cursor = self.next.clone();
        params
    }

    /// Whether there is another page. A cursor that comes again leads to one that is known.
    pub fn go_on(&mut self, next: Option<String>) -> bool {
        self.next = next.filter(|cursor| self.seen.insert(cursor.clone()));
        self.next.is_some()
    }
}

/// A page of tools.
#[derive(Debug, Default)]
pub struct ToolPage {
    pub tools: Vec<Tool>,
    pub remarks: Vec<String>,
    pub next_cursor: Option<String>,
}

impl ToolPage {
    /// Reads a page tool by tool; `None` if it is none.
    pub fn read(page: &Value) -> Option<ToolPage> {
        let next_cursor = page["nextCursor"].as_str().map(str::to_owned);
        let mut read = ToolPage { next_cursor, ..ToolPage::default() };
        for tool in page["tools"].as_array()? {
            match read_tool(tool) {
                Ok(tool) => read.tools.push(tool),
                Err(why) => read.remarks.push(why),
            }
        }
        Some(read)
    }
}

/// Reads a tool. Without a usable schema it has no parameters, and a description that is no text is left out.
fn read_tool(tool: &Value) -> Result<Tool, String> {
    let name = tool["name"].as_str().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| "a tool without a name is left out".to_owned())?;
    serde_json::from_value(tool.clone())
        .or_else(|_| {
            let schema = Some(&tool["inputSchema"]).filter(|schema| schema.is_object());
            let mut plain =
                json!({ "name": name, "inputSchema": schema.unwrap_or(&json!({ "type": "object" })) });
            for field in ["description", "title"] {
                if tool[field].is_string() {
                    plain[field] = tool[field].clone();
                }
            }
            serde_json::from_value(plain)
        })
        .map_err(|error| format!("its tool {:?} is left out: {error}", short(name)))
}

impl RawListing {
    /// Adds a page of tools, each name once.
    pub fn add_tools(&mut self, tools: Vec<Tool>, remarks: Vec<String>) {
        for tool in tools {
            if !self.tools.iter().any(|known| known.name == tool.name) {
                self.tools.push(tool);
            }
        }
        self.remarks.extend(remarks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server returned the same cursor with every page: its two tools became forty.
    #[test]
    fn a_cursor_that_repeats_ends_the_list() {
        let mut cursors = Cursors::default();
        let pages: Vec<bool> =
            ["a", "b", "a"].map(|cursor| cursors.go_on(Some(cursor.to_owned()))).into_iter().collect();
        assert_eq!(pages, [true, true, false]);
        assert!(!Cursors::default().go_on(None));
        let mut listing = RawListing::default();
        for _ in 0..2 {
            listing.add_tools(
                ToolPage::read(&json!({"tools": [{"name": "a"}]})).expect("a page").tools,
                Vec::new(),
            );
        }
        assert_eq!(listing.tools.len(), 1);
    }

    /// One tool without `inputSchema` made all tools of its server unavailable.
    #[test]
    fn a_tool_that_is_none_does_not_take_the_others_along() {
        let page = json!({"nextCursor": "c", "tools": [
            {"name": "none"}, {"name": "null", "inputSchema": null}, {"name": "all", "inputSchema": true},
            {"name": "number", "description": 7, "inputSchema": {"type": "object", "properties": {"q": {}}}},
            {"description": "no name"}, 7,
        ]});
        let page = ToolPage::read(&page).expect("a page");
        let names: Vec<&str> = page.tools.iter().map(|tool| &*tool.name).collect();
        assert_eq!(names, ["none", "null", "all", "number"]);
        assert!(page.tools[3].input_schema.contains_key("properties"));
        assert_eq!((page.remarks.len(), page.next_cursor.as_deref()), (2, Some("c")));
        assert!(ToolPage::read(&json!({"content": []})).is_none());
    }
}
