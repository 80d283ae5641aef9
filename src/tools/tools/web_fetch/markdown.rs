//! Converts a page's HTML to Markdown, reduced to its text. Pure: runs and loads nothing.

use htmd::element_handler::Handlers;
use htmd::{Element, HtmlToMarkdown};

/// Maximum nesting of elements for the conversion, which is recursive. Deeper pages are assumed to be attacks on the
/// stack and become plain text.
const DEPTH_MAX: usize = 200;

/// Elements without useful text.
const LEFT_OUT: [&str; 17] = [
    "script", "style", "noscript", "template", "svg", "canvas", "iframe", "object", "embed", "head", "nav",
    "footer", "aside", "form", "button", "select", "dialog",
];

/// Elements that can't nest: they have no content, or are closed by the next one of their kind.
const SHALLOW: [&str; 27] = [
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr",
    "p", "li", "td", "th", "tr", "dt", "dd", "option", "thead", "tbody", "tfoot", "colgroup", "param",
    "optgroup",
];

/// Returns the page's title and text. `link` makes an address absolute; if it returns `None`, only the link
/// text is kept.
pub fn markdown(
    html: &str,
    link: impl Fn(&str) -> Option<String> + Clone + Send + Sync + 'static,
) -> (Option<String>, String) {
    let title = title(html);
    if depth(html) > DEPTH_MAX {
        return (title, bare(html));
    }
    let for_images = link.clone();
    let converter = HtmlToMarkdown::builder()
        .skip_tags(LEFT_OUT.to_vec())
        .add_handler(vec!["a"], move |handlers: &dyn Handlers, element: Element| {
            let content = handlers.walk_children(element.node).content;
            let words = content.split_whitespace().collect::<Vec<_>>().join(" ");
            let address = attribute(&element, "href").filter(|address| !address.starts_with('#'));
            match address.and_then(|address| link(&address)) {
                Some(address) if !words.is_empty() => {
                    Some(format!("[{words}]({})", escaped(&address)).into())
                }
                Some(_) | None => Some(content.into()),
            }
        })
        .add_handler(vec!["img"], move |_: &dyn Handlers, element: Element| {
            let words = attribute(&element, "alt").filter(|words| !words.trim().is_empty())?;
            let address = attribute(&element, "src").and_then(|address| for_images(&address))?;
            Some(format!("![{}]({})", words.trim(), escaped(&address)).into())
        })
        .build();
    let text = converter.convert(html).unwrap_or_else(|_| bare(html));
    (title, tidied(&text))
}

fn attribute(element: &Element<'_>, name: &str) -> Option<String> {
    let found = element.attrs.iter().find(|attribute| &*attribute.name.local == name)?;
    Some(found.value.to_string())
}

fn escaped(address: &str) -> String {
    address.replace('(', "%28").replace(')', "%29").replace(' ', "%20")
}

/// Removes trailing white space and repeated empty lines.
fn tidied(text: &str) -> String {
    let mut tidy = String::with_capacity(text.len());
    let mut empty = 0;
    for line in text.lines().map(str::trim_end) {
        empty = if line.is_empty() { empty + 1 } else { 0 };
        if empty < 2 {
            tidy.push_str(line);
            tidy.push('\n');
        }
    }
    tidy.trim_matches('\n').to_owned()
}

fn title(html: &str) -> Option<String> {
    let lower = html.to_ascii_lowercase();
    let start = lower.find("<title")?;
    let start = start + lower[start..].find('>')? + 1;
    let end = start + lower[start..].find("</title")?;
    let words = html[start..end].split_whitespace().collect::<Vec<_>>().join(" ");
    let words = words.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    (!words.is_empty()).then_some(words)
}

/// Returns the maximum nesting of elements, estimated from the tags.
fn depth(html: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for (at, _) in html.match_indices('<') {
        let rest = &html[at + 1..];
        let is_end = rest.starts_with('/');
        let name: &str = rest
            .trim_start_matches('/')
            .split(|c: char| !c.is_ascii_alphanumeric())
            .next()
            .unwrap_or_default();
        if name.is_empty() || SHALLOW.iter().any(|shallow| shallow.eq_ignore_ascii_case(name)) {
            continue;
        }
        depth = if is_end { depth.saturating_sub(1) } else { depth + 1 };
        deepest = deepest.max(depth);
    }
    deepest
}

fn bare(html: &str) -> String {
    let mut text = String::new();
    let mut rest = html;
    while let Some((words, behind)) = rest.split_once('<') {
        text.push_str(words);
        let hidden = ["script", "style"]
            .into_iter()
            .find(|name| behind.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name)));
        let end = match hidden {
            Some(name) => behind.to_ascii_lowercase().find(&format!("</{name}")).unwrap_or(behind.len()),
            None => 0,
        };
        rest = behind[end..].split_once('>').map_or("", |(_, behind)| behind);
        if !text.ends_with(char::is_whitespace) {
            text.push(' ');
        }
    }
    text.push_str(rest);
    let lines: Vec<String> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    tidied(&lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(html: &str) -> (Option<String>, String) {
        markdown(html, |link| (!link.starts_with("javascript:")).then(|| format!("https://h.example/{link}")))
    }

    #[test]
    fn page_is_converted_to_markdown() {
        let html = "<!doctype html><html><head><title>A &amp;\n B</title><style>p{}</style></head><body><nav>Menu</nav>\
                    <h1>Hello</h1><p>See <a href='x(1)'>the\n docs</a>, <a href='javascript:y()'>not this</a> and \
                    <a href='#top'>that</a>.</p><script>alert('no')</script><ul><li>one</li><li>two</li></ul>\
                    <pre><code>let x = 1;</code></pre><img src='i.png' alt='A plot'><img src='track.gif'>\
                    <footer>Imprint</footer></body></html>";
        let (title, text) = read(html);
        assert_eq!(title.as_deref(), Some("A & B"));
        assert_eq!(
            text,
            "# Hello\n\nSee [the docs](https://h.example/x%281%29), not this and that.\n\n*   one\n*   two\n\n\
             ```\nlet x = 1;\n```\n\n![A plot](https://h.example/i.png)"
        );
    }

    /// Each nested element takes up stack space; half a million of them crashed the process.
    #[test]
    fn deeply_nested_page_becomes_plain_text() {
        let html = format!("{}deep <b>words</b><script>no</script>", "<div>".repeat(500_000));
        assert_eq!(read(&html).1, "deep words");
        let nested = format!("{}words{}", "<div>".repeat(DEPTH_MAX - 5), "</div>".repeat(DEPTH_MAX - 5));
        assert_eq!(read(&nested).1, "words");
        let list = format!("<ul>{}</ul>", "<li>x".repeat(2 * DEPTH_MAX));
        assert!(read(&list).1.starts_with("*   x\n"));
    }

    #[test]
    fn malformed_html_does_not_panic() {
        for html in ["", "<", "<title", "<title>x", "a < b", "<script>", "<<<>>>", "<p>\u{0}ä"] {
            read(html);
            bare(html);
        }
        assert_eq!(bare("a<br>b <script>x</script>c"), "a b c");
    }
}
