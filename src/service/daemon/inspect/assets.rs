//! The page's files, embedded in the executable: no build step and no downloads.

/// A file of the page.
#[derive(Debug, PartialEq, Eq)]
pub struct Asset {
    pub name: &'static str,
    pub content_type: &'static str,
    pub text: &'static str,
}

/// The page itself.
pub const PAGE: Asset =
    Asset { name: "", content_type: "text/html; charset=utf-8", text: include_str!("page/page.html") };

const SCRIPT: &str = "text/javascript; charset=utf-8";

static OTHERS: [Asset; 6] = [
    Asset { name: "page.css", content_type: "text/css; charset=utf-8", text: include_str!("page/page.css") },
    Asset { name: "page.js", content_type: SCRIPT, text: include_str!("page/page.js") },
    Asset { name: "parts.js", content_type: SCRIPT, text: include_str!("page/parts.js") },
    Asset { name: "plot.js", content_type: SCRIPT, text: include_str!("page/plot.js") },
    Asset { name: "rounds.js", content_type: SCRIPT, text: include_str!("page/rounds.js") },
    Asset { name: "icon.svg", content_type: "image/svg+xml", text: include_str!("page/icon.svg") },
];

/// Returns a file used by the page, by name.
pub fn find(name: &str) -> Option<&'static Asset> {
    OTHERS.iter().find(|asset| asset.name == name)
}
