//! Adds and removes tables of MCP servers in the text of `config.toml`, preserving everything else including
//! comments. Pure.

use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, value};

use crate::cli::CliError;
use epitome_config::{McpServer, McpTransport};

/// Returns the text with a table for the server.
pub fn add_server(text: &str, server: &McpServer) -> Result<String, CliError> {
    let mut document = parse(text)?;
    let servers = servers(&mut document)?;
    if servers.contains_key(&server.name) {
        return Err(CliError::failed(format!("There is an MCP server {:?} already.", server.name)));
    }
    servers.insert(&server.name, Item::Table(server_table(server)));
    Ok(document.to_string())
}

/// Returns the text without the table of the server with this name.
pub fn remove_server(text: &str, name: &str) -> Result<String, CliError> {
    let mut document = parse(text)?;
    match servers(&mut document)?.remove(name) {
        Some(_) => Ok(with_comments_of_others(text, &document.to_string())),
        None => Err(CliError::failed(format!("config.toml has no MCP server {name:?}."))),
    }
}

/// Restores the comments above what was removed, except those directly above it: a blank line separates the others from it.
fn with_comments_of_others(before: &str, after: &str) -> String {
    let same = before.lines().zip(after.lines()).take_while(|(before, after)| before == after).count();
    let is_note = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
    let above: Vec<&str> = before.lines().skip(same).take_while(is_note).collect();
    let others = above.iter().rposition(|line| line.trim().is_empty()).unwrap_or(0);
    let others = above[..others].join("\n");
    let (start, end) = after.split_at(after.split_inclusive('\n').take(same).map(str::len).sum());
    match (others.trim().is_empty(), end.trim_start_matches('\r').starts_with('\n') || end.is_empty()) {
        (true, _) => after.to_owned(),
        (false, true) => format!("{start}{others}\n{end}"),
        (false, false) => format!("{start}{others}\n\n{end}"),
    }
}

fn parse(text: &str) -> Result<DocumentMut, CliError> {
    text.parse().map_err(|error: toml_edit::TomlError| {
        CliError::failed(format!("config.toml is not valid TOML: {}.", error.message()))
    })
}

/// Returns the table `mcp.servers`, creating it if missing.
fn servers(document: &mut DocumentMut) -> Result<&mut dyn TableLike, CliError> {
    let mut table: &mut dyn TableLike = document.as_table_mut();
    for name in ["mcp", "servers"] {
        let mut new = Table::new();
        new.set_implicit(true);
        let item = table.entry(name).or_insert(Item::Table(new));
        table = item.as_table_like_mut().ok_or_else(|| format!("{name} in config.toml is not a table."))?;
    }
    Ok(table)
}

fn server_table(server: &McpServer) -> Table {
    let mut table = Table::new();
    match &server.way {
        McpTransport::Stdio { command, args, env } => {
            table["command"] = value(command);
            if !args.is_empty() {
                table["args"] = value(Array::from_iter(args));
            }
            add_pairs(&mut table, "env", env);
        }
        McpTransport::Http { url, headers, key_variable } => {
            table["url"] = value(url);
            add_pairs(&mut table, "headers", headers);
            if let Some(name) = key_variable {
                table["key_variable"] = value(name);
            }
        }
        McpTransport::Client { .. } => unreachable!("settings have no servers of clients"),
    }
    if !server.enabled {
        table["enabled"] = value(false);
    }
    table
}

fn add_pairs(table: &mut Table, name: &str, pairs: &[(String, String)]) {
    if !pairs.is_empty() {
        table[name] = value(InlineTable::from_iter(pairs.iter().map(|(name, value)| (name, value))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_config::McpSource;

    fn process(name: &str) -> McpServer {
        let way = McpTransport::Stdio {
            command: "npx".to_owned(),
            args: vec!["-y".to_owned(), "two words".to_owned()],
            env: vec![("KEY".to_owned(), "${KEY}".to_owned())],
        };
        McpServer::new(name.to_owned(), McpSource::Person, way)
    }

    const CONFIG: &str = "# mine\nmodel = \"a/b\" # the good one\n\n[mcp]\nwait_s = 3\n";

    #[test]
    fn an_added_server_leaves_the_rest_of_the_file_as_it_is() {
        let table = "\n[mcp.servers.\"my server\"]\ncommand = \"npx\"\nargs = [\"-y\", \"two words\"]\n\
                     env = { KEY = \"${KEY}\" }\n";
        let added = add_server(CONFIG, &process("my server")).expect("it is added");
        assert_eq!(added, format!("{CONFIG}{table}"));
        assert!(add_server(&added, &process("my server")).is_err_and(|why| why.message.contains("already")));
        assert!(add_server("", &process("a")).is_ok_and(|text| text.starts_with("[mcp.servers.a]")));
        let inline = "[mcp]\nservers = { b = { command = \"c\" } }\n";
        let added = add_server(inline, &process("a")).expect("it is added");
        assert!(
            added.starts_with("[mcp]\nservers = { b = { command = \"c\" } , a = { command = "),
            "{added}"
        );
        for text in ["mcp = 1\n", "a = \n"] {
            let why = add_server(text, &process("a")).expect_err("it cannot be added").message;
            assert!(why.contains("config.toml"), "{why}");
        }
    }

    #[test]
    fn a_removed_server_takes_only_its_own_lines_along() {
        let after = "\n# about b\n[mcp.servers.b]\ncommand = \"b\"\n";
        let table = "\n[mcp.servers.a]\n# its command\ncommand = \"\"\"\n[x]\n\"\"\"\nargs = [\n  \"x\", # x\n]\n\
                     [mcp.servers.a.env]\nK = \"v\"\n";
        let text = format!("{CONFIG}{table}{after}");
        assert_eq!(remove_server(&text, "a"), Ok(format!("{CONFIG}{after}")));
        assert!(remove_server(&text, "c").is_err_and(|why| why.message.contains("no MCP server")));
        let inline = "[mcp.servers]\na = { command = \"a\" }\n";
        assert_eq!(remove_server(inline, "a"), Ok("[mcp.servers]\n".to_owned()));
    }

    /// The comment at the top of the file, and those of a group of servers, were removed with the first server.
    #[test]
    fn comments_that_a_blank_line_separates_from_a_removed_server_stay() {
        let a = "# about a\n[mcp.servers.a]\ncommand = \"a\"\n";
        let b = "# about b\n[mcp.servers.b]\ncommand = \"b\" # it\n# foot\n";
        for (text, left) in [
            (format!("# mine\n# of two lines\n\n{a}\n{b}"), format!("# mine\n# of two lines\n\n{b}")),
            (format!("# mine\n\n# servers\n\n{a}{b}"), format!("# mine\n\n# servers\n\n{b}")),
            (format!("x = 1\n\n# servers\n\n{a}\n# end\n\n{b}"), format!("x = 1\n\n# servers\n\n# end\n\n{b}")),
            (format!("x = 1\n\n# servers\n\n{a}"), "x = 1\n\n# servers\n".to_owned()),
            (
                "[mcp.servers]\n# all\n\n# about a\na = { command = \"a\" }\n# about b\nb = { command = \"b\" }\n".to_owned(),
                "[mcp.servers]\n# all\n\n# about b\nb = { command = \"b\" }\n".to_owned(),
            ),
            (format!("{a}\n{b}"), format!("\n{b}")),
        ] {
            assert_eq!(remove_server(&text, "a"), Ok(left), "{text}");
        }
    }
}
