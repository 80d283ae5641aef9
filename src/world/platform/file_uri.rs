//! Paths as `file:` URIs.

use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use super::os::{path_from_uri, path_in_uri};

/// The characters that are not escaped, in addition to letters and digits.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns the URI of an absolute path.
pub fn of(path: &Path) -> String {
    format!("file://{}", percent_encode(&path_in_uri(path), PLAIN))
}

/// Returns the path of a URI; `None` for a part of a file (`#L10-20`), a file of another machine, and other URIs.
pub fn path(uri: &str) -> Option<PathBuf> {
    let rest = uri.strip_prefix("file://")?;
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    let bytes: Vec<u8> = percent_decode_str(path).collect();
    let is_path = path.starts_with('/') && !path.contains(['#', '?']) && !bytes.contains(&0);
    is_path.then(|| path_from_uri(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_comes_back_from_its_uri() {
        let (shown, uri) = match cfg!(windows) {
            true => (r"C:\Users\a b\ä#1", "file:///C%3A/Users/a%20b/%C3%A4%231"),
            false => ("/home/a b/ä#1", "file:///home/a%20b/%C3%A4%231"),
        };
        assert_eq!(of(Path::new(shown)), uri);
        assert_eq!(path(uri).as_deref(), Some(Path::new(shown)));
    }

    #[test]
    fn what_is_no_local_file_has_no_path() {
        for other in ["https://a/b", "file://server/share", "file://", "/a", "file:///a#L1", "file:///a%00"] {
            assert_eq!(path(other), None, "{other}");
        }
    }
}
