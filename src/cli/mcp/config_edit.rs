//! Adds and removes tables of MCP servers in the text of `config.toml`, and keeps everything else of it, comments too.
//! Pure. Each change is checked by reading both texts, so that an unusual file is refused and never damaged.

use std::fmt::Write as _;

use toml::{Table, Value};

use crate::config::{McpServer, McpTransport};

/// Returns the text with a table for the server at its end. The error is a sentence.
pub fn add_server(text: &str, server: &McpServer) -> Result<String, String> {
    let before = parse(text)?;
    if servers(&before).is_some_and(|servers| servers.contains_key(&server.name)) {
        return Err(format!("There is an MCP server {:?} already.", server.name));
    }
    let table = server_table(server);
    let between = match text.trim_end().is_empty() {
        true => "",
        false if text.ends_with('\n') => "\n",
        false => "\n\n",
    };
    let after = format!("{text}{between}{table}");
    let added = parse(&after).ok().and_then(|mut table| remove(&mut table, &server.name).map(|_| table));
    let is_kept = added.is_some_and(|rest| without_empty(rest) == without_empty(before));
    match is_kept {
        true => Ok(after),
        false => Err(format!("config.toml has an unusual form. Add this to it:\n\n{table}")),
    }
}

/// Returns the text without the table of the server of this name. The error is a sentence.
pub fn remove_server(text: &str, name: &str) -> Result<String, String> {
    let mut expected = parse(text)?;
    if remove(&mut expected, name).is_none() {
        return Err(format!("config.toml has no MCP server {name:?}."));
    }
    let after = without_tables(text, name);
    let is_kept = parse(&after).is_ok_and(|table| without_empty(table) == without_empty(expected));
    match is_kept {
        true => Ok(after),
        false => {
            Err(format!("config.toml has an unusual form. Remove the MCP server {name:?} from it by hand."))
        }
    }
}

/// The text without the lines of `[mcp.servers.NAME]` and the tables below it.
fn without_tables(text: &str, name: &str) -> String {
    let mut kept = String::new();
    let mut is_inside = false;
    // Comments and empty lines before the next table belong to that one.
    let mut undecided = String::new();
    for line in text.split_inclusive('\n') {
        let words = line.trim();
        if let Some(header) = header(words) {
            is_inside = header.len() >= 3 && header[..3] == ["mcp", "servers", name];
            if !is_inside {
                kept.push_str(&undecided);
            }
            undecided.clear();
        } else if is_inside && (words.is_empty() || words.starts_with('#')) {
            undecided.push_str(line);
            continue;
        } else if is_inside {
            undecided.clear();
        }
        if !is_inside {
            kept.push_str(line);
        }
    }
    if undecided.contains('#') {
        kept.push_str(&undecided);
    }
    kept
}

/// The keys of a table's header line.
fn header(line: &str) -> Option<Vec<String>> {
    line.strip_prefix('[').filter(|rest| !rest.starts_with('['))?;
    let mut keys = Vec::new();
    let mut table = toml::from_str::<Table>(line).ok()?;
    while let Some((key, value)) = table.into_iter().next() {
        keys.push(key);
        match value {
            Value::Table(inner) => table = inner,
            _ => return None,
        }
    }
    Some(keys)
}

fn parse(text: &str) -> Result<Table, String> {
    toml::from_str(text).map_err(|error| format!("config.toml is not valid TOML: {}.", error.message()))
}

fn servers(table: &Table) -> Option<&Table> {
    table.get("mcp")?.get("servers")?.as_table()
}

fn remove(table: &mut Table, name: &str) -> Option<Value> {
    table.get_mut("mcp")?.get_mut("servers")?.as_table_mut()?.remove(name)
}

/// Without the tables that exist only because they contained a server.
fn without_empty(mut table: Table) -> Table {
    if let Some(mcp) = table.get_mut("mcp").and_then(Value::as_table_mut) {
        mcp.retain(|key, value| {
            key != "servers" || value.as_table().is_none_or(|servers| !servers.is_empty())
        });
    }
    table.retain(|key, value| key != "mcp" || value.as_table().is_none_or(|mcp| !mcp.is_empty()));
    table
}

/// A server as a table of `config.toml`.
pub fn server_table(server: &McpServer) -> String {
    let mut table = format!("[mcp.servers.{}]\n", key(&server.name));
    match &server.way {
        McpTransport::Stdio { command, args, env } => {
            let _ = writeln!(table, "command = {}", quoted(command));
            if !args.is_empty() {
                let args: Vec<String> = args.iter().map(|arg| quoted(arg)).collect();
                let _ = writeln!(table, "args = [{}]", args.join(", "));
            }
            write_pairs(&mut table, "env", env);
        }
        McpTransport::Http { url, headers, key_variable } => {
            let _ = writeln!(table, "url = {}", quoted(url));
            write_pairs(&mut table, "headers", headers);
            if let Some(name) = key_variable {
                let _ = writeln!(table, "key_variable = {}", quoted(name));
            }
        }
    }
    if !server.enabled {
        table.push_str("enabled = false\n");
    }
    table
}

fn write_pairs(table: &mut String, name: &str, pairs: &[(String, String)]) {
    if !pairs.is_empty() {
        let pairs: Vec<String> =
            pairs.iter().map(|(name, value)| format!("{} = {}", key(name), quoted(value))).collect();
        let _ = writeln!(table, "{name} = {{ {} }}", pairs.join(", "));
    }
}

fn key(name: &str) -> String {
    let is_bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if is_bare { name.to_owned() } else { quoted(name) }
}

/// A basic string. TOML's escapes are those of JSON, and it also forbids a bare DEL.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::McpSource;

    fn process(name: &str) -> McpServer {
        let way = McpTransport::Stdio {
            command: "npx".to_owned(),
            args: vec!["-y".to_owned(), "a \"quoted\" one".to_owned()],
            env: vec![("KEY".to_owned(), "${KEY}".to_owned())],
        };
        McpServer::new(name.to_owned(), McpSource::Person, way)
    }

    const CONFIG: &str = "# mine\nmodel = \"a/b\" # the good one\n\n[mcp]\nwait_s = 3\n";

    #[test]
    fn an_added_server_leaves_the_rest_of_the_file_as_it_is() {
        let added = add_server(CONFIG, &process("my server")).expect("it is added");
        assert_eq!(
            added,
            format!(
                "{CONFIG}\n[mcp.servers.\"my server\"]\ncommand = \"npx\"\nargs = [\"-y\", \"a \\\"quoted\\\" one\"]\n\
                 env = {{ KEY = \"${{KEY}}\" }}\n"
            )
        );
        assert!(add_server(&added, &process("my server")).is_err_and(|why| why.contains("already")));
        assert!(add_server("", &process("a")).is_ok_and(|text| text.starts_with("[mcp.servers.a]")));
        for text in ["mcp = {}\n", "[mcp]\nservers = { b = { command = \"c\" } }\n", "a = \n"] {
            let why = add_server(text, &process("a")).expect_err("it cannot be appended");
            assert!(why.starts_with("config.toml"), "{why}");
        }
    }

    #[test]
    fn a_removed_server_takes_only_its_own_lines_along() {
        let after = "\n# about b\n[mcp.servers.b]\ncommand = \"b\"\n";
        let table = "\n[mcp.servers.a]\n# its command\ncommand = \"a\"\nargs = [\n  \"x\", # x\n]\n[mcp.servers.a.env]\nK = \"v\"\n";
        let text = format!("{CONFIG}{table}{after}");
        assert_eq!(remove_server(&text, "a"), Ok(format!("{CONFIG}\n{after}")));
        assert!(remove_server(&text, "c").is_err_and(|why| why.contains("no MCP server")));
        let inline = "[mcp.servers]\na = { command = \"a\" }\n";
        assert!(remove_server(inline, "a").is_err_and(|why| why.contains("by hand")));
        let tricky = "[mcp.servers.a]\ncommand = \"\"\"\n[x]\n\"\"\"\n";
        assert!(remove_server(tricky, "a").is_err_and(|why| why.contains("by hand")));
    }
}
