//! Images of a prompt. Terminals paste and drop an image as its path: plain, in quotes of the shell, or as a URI.

use std::path::{Path, PathBuf};

use agent_client_protocol::v2::schema as wire;
use epitome_client::{AttachmentError, of_prompt, read_attachment};
use epitome_platform::file_uri;
use epitome_thread::Content;
use epitome_thread::visible::visible_line;

/// The endings of names of images, in lower case.
const ENDINGS: [&str; 5] = ["png", "jpg", "jpeg", "gif", "webp"];

/// Bytes of a pasted text that may be names of images.
const NAMES_BYTES_MAX: usize = 8 * 1024;

/// An image that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptImage {
    pub path: PathBuf,
    pub block: wire::ContentBlock,
}

/// The images that a pasted text names.
#[derive(Debug)]
pub enum PastedImages {
    Read(Vec<PromptImage>),
    /// There are such files, but one of them can't be sent: a sentence.
    Unusable(String),
    /// The text is only text.
    Absent,
}

impl PromptImage {
    /// The name of the file, for the draft.
    pub fn name(&self) -> String {
        visible_line(&self.path.file_name().unwrap_or_default().to_string_lossy()).into_owned()
    }
}

/// Whether a pasted text looks like names of images.
pub fn are_named(pasted: &str) -> bool {
    !readings(pasted).is_empty()
}

/// Reads the images that a pasted text names. Relative names are those of files in `cwd`.
pub fn read_pasted(pasted: &str, cwd: &Path) -> PastedImages {
    let in_cwd = |names: Vec<PathBuf>| names.into_iter().map(|name| cwd.join(name)).collect::<Vec<_>>();
    let named =
        readings(pasted).into_iter().map(in_cwd).find(|paths| paths.iter().all(|path| path.is_file()));
    let Some(paths) = named else { return PastedImages::Absent };
    let mut images = Vec::new();
    for path in paths {
        match attached(&path) {
            Ok(block) => images.push(PromptImage { path, block }),
            Err(why) => return PastedImages::Unusable(why.to_string()),
        }
    }
    PastedImages::Read(images)
}

/// The words of an earlier chat's prompt that name images by their whole paths.
pub fn words_of(prompt: &str) -> Vec<String> {
    let opening = |c| "(\"'`".contains(c);
    let closing = |c| ",.;:!?)\"'`".contains(c);
    let words =
        prompt.split_whitespace().map(|word| word.trim_start_matches(opening).trim_end_matches(closing));
    let is_named = |word: &&str| {
        let path = file_uri::path(word).unwrap_or_else(|| PathBuf::from(word));
        path.is_absolute() && is_image(&path)
    };
    words.filter(is_named).map(str::to_owned).collect()
}

/// The image that such a word names, if it can still be read.
pub fn read_again(word: &str) -> Option<PromptImage> {
    let path = file_uri::path(word).unwrap_or_else(|| PathBuf::from(word));
    let block = path.is_file().then(|| attached(&path).ok())??;
    Some(PromptImage { path, block })
}

fn is_image(path: &Path) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str()))
}

/// An image or a document as a part of a prompt.
pub fn attached(path: &Path) -> Result<wire::ContentBlock, AttachmentError> {
    let mut content = read_attachment(path)?;
    if let Content::Image { uri, .. } = &mut content {
        *uri = Some(file_uri::of(path));
    }
    Ok(of_prompt(&[content]).pop().expect("attachments are parts of prompts"))
}

/// The name of an image that another client may have attached.
pub fn name_of(image: &wire::ImageContent) -> String {
    let path = image.uri.as_deref().and_then(file_uri::path);
    let name = path.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| image.mime_type.to_string())
}

/// The ways in which a text names images only: as one name with blanks, or as words of the shell.
fn readings(pasted: &str) -> Vec<Vec<PathBuf>> {
    let text = pasted.trim().replace('\r', "\n");
    if text.len() > NAMES_BYTES_MAX {
        return Vec::new();
    }
    let path = |name: &String| file_uri::path(name).unwrap_or_else(|| PathBuf::from(name));
    [Some(vec![text.clone()]), shlex::split(&text)]
        .into_iter()
        .flatten()
        .map(|names| names.iter().map(path).collect::<Vec<_>>())
        .filter(|paths| !paths.is_empty() && paths.iter().all(|path| is_image(path)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_of_an_earlier_chat_names_its_images() {
        for (prompt, expected) in [
            ("compare /a/b.png, please", vec!["/a/b.png"]),
            ("(file:///a%20b/c.JPG) and /d.webp.", vec!["file:///a%20b/c.JPG", "/d.webp"]),
            ("see ./b.png, /a/b.txt and https://host/a.png", vec![]),
        ] {
            assert_eq!(words_of(prompt), expected, "{prompt}");
        }
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("a shot.png");
        assert_eq!(read_again(&file_uri::of(&path)), None);
        std::fs::write(&path, b"\x89PNG\r\n\x1a\n").expect("written");
        assert_eq!(read_again(&file_uri::of(&path)).map(|image| image.path), Some(path));
    }

    #[test]
    fn images_are_pasted_as_terminals_name_them() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let cwd = scratch.path();
        for (name, bytes) in
            [("a shot.png", &b"\x89PNG\r\n\x1a\n"[..]), ("b.JPG", b"\xff\xd8\xff\xe0"), ("no.gif", b"text")]
        {
            std::fs::write(cwd.join(name), bytes).expect("written");
        }
        let large = [&b"GIF89a"[..], &vec![0; 4_000_000]].concat();
        std::fs::write(cwd.join("large.gif"), large).expect("written");
        let at = cwd.display().to_string();
        for (pasted, expected) in [
            (format!("{at}/a shot.png"), vec!["a shot.png"]),
            (format!("{at}/a\\ shot.png \n"), vec!["a shot.png"]),
            (format!("'{at}/a shot.png' {at}/b.JPG"), vec!["a shot.png", "b.JPG"]),
            (format!("file://{at}/a%20shot.png\r\nfile://{at}/b.JPG\r\n"), vec!["a shot.png", "b.JPG"]),
            ("b.JPG".to_owned(), vec!["b.JPG"]),
        ] {
            assert!(are_named(&pasted), "{pasted}");
            let read = read_pasted(&pasted, cwd);
            let PastedImages::Read(images) = read else { panic!("{pasted}: {read:?}") };
            assert_eq!(images.iter().map(PromptImage::name).collect::<Vec<_>>(), expected, "{pasted}");
            assert!(images.iter().all(|image| matches!(image.block, wire::ContentBlock::Image(_))));
        }
        for text in ["see a.png for it", "nothing", "", &"x.png ".repeat(2_000)] {
            assert!(!are_named(text), "{text}");
        }
        assert!(matches!(read_pasted("gone.png", cwd), PastedImages::Absent));
        for (pasted, expected) in [("large.gif", "at most 3.75 MB"), ("no.gif", "not a PNG, JPEG")] {
            let read = read_pasted(pasted, cwd);
            assert!(matches!(&read, PastedImages::Unusable(why) if why.contains(expected)), "{read:?}");
        }
    }
}
