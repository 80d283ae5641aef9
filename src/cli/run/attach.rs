//! `--attach FILE`: images and PDF documents as parts of the prompt.

use std::path::PathBuf;

use epitome_client::read_attachment;

use crate::cli::CliError;
use crate::thread::Content;
use crate::thread::attached::prompt_too_large;

/// Reads the files in order.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Content>, CliError> {
    let mut content = Vec::new();
    for path in paths {
        content.push(
            read_attachment(path).map_err(|error| {
                CliError::failed(error.to_string()).hint_if(error.hint().map(str::to_owned))
            })?,
        );
        // Check after each file, to avoid reading the rest unnecessarily.
        if let Some(why) = prompt_too_large(&content) {
            return Err(CliError::failed(format!("the prompt has {why}")));
        }
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_become_parts_by_what_is_in_them() {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let write = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, bytes).expect("a file");
            path
        };
        let png = write("shot.txt", b"\x89PNG\r\n\x1a\n");
        let pdf = write("plan.pdf", b"%PDF-1.7\n");
        let content = read(&[png, pdf]).expect("both are known");
        let mime_type = "application/pdf".to_owned();
        let expected = [
            Content::Image { mime_type: "image/png".to_owned(), data: "iVBORw0KGgo=".to_owned(), uri: None },
            Content::Document {
                mime_type,
                data: "JVBERi0xLjcK".to_owned(),
                name: Some("plan.pdf".to_owned()),
            },
        ];
        assert_eq!(content, expected);

        let documents = [write("many.pdf", &[b"%PDF-1.7".to_vec(), vec![0; 10_000_000]].concat())];
        let error = read(&[documents.clone(), documents].concat()).expect_err("they are too much together");
        assert!(error.message.starts_with("the prompt has images and documents of 20.00 MB"), "{error:?}");
        let large = write("large.gif", &[b"GIF89a".to_vec(), vec![0; 5_000_000]].concat());
        let text = write("a.png", b"no image");
        let table = [
            (large, "it is an image of 5.00 MB"),
            (text, "it is not a PNG, JPEG, GIF, WebP or PDF file"),
            (directory.path().join("gone"), "No such file"),
            (directory.path().to_path_buf(), "it is not a regular file"),
        ];
        for (path, expected) in table {
            let error = read(std::slice::from_ref(&path)).expect_err("this is refused").message;
            assert!(error.contains(expected) && error.contains(&*path.to_string_lossy()), "{error}");
        }
    }
}
