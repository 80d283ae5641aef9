//! Messages of the Language Server Protocol on a stream: a header with the length, then JSON.

use std::io;

use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

const HEAD_BYTES_MAX: u64 = 4 * 1024;
/// Maximum bytes of a message. Lists of references may have several megabytes.
const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Reads the next message; `None` at the end of the stream. Lines that aren't part of a header are skipped, because
/// some servers print text before their first message.
pub async fn read(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Value>> {
    let mut length = None;
    loop {
        let mut line = Vec::new();
        let read = (&mut *stream).take(HEAD_BYTES_MAX).read_until(b'\n', &mut line).await?;
        if read == 0 {
            return Ok(None);
        }
        let line = String::from_utf8_lossy(&line);
        let line = line.trim();
        match line.split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse::<usize>().ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
                if length.is_none() {
                    return Err(invalid("the length of a message is no number, or too large"));
                }
            }
            None if line.is_empty() && length.is_some() => break,
            Some(_) | None => {}
        }
    }
    let mut body = vec![0; length.unwrap_or_default()];
    stream.read_exact(&mut body).await?;
    serde_json::from_slice(&body).map(Some).map_err(|_| invalid("a message is no JSON"))
}

pub fn frame(message: &Value) -> Vec<u8> {
    let body = message.to_string();
    format!("Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn messages_are_read_whatever_is_around_them() {
        let mut bytes = b"npm notice: hello\n".to_vec();
        bytes.extend(frame(&json!({"id": 1, "text": "ä"})));
        bytes.extend(b"content-length: 2\r\nContent-Type: application/json\r\n\r\n{}");
        let mut stream = &bytes[..];
        assert_eq!(read(&mut stream).await.expect("a message"), Some(json!({"id": 1, "text": "ä"})));
        assert_eq!(read(&mut stream).await.expect("a message"), Some(json!({})));
        assert_eq!(read(&mut stream).await.expect("the end"), None);
    }

    #[tokio::test]
    async fn malformed_messages_are_errors() {
        for bytes in [
            "Content-Length: x\r\n\r\n",
            "Content-Length: 99999999999\r\n\r\n",
            "Content-Length: 3\r\n\r\nno!",
            "Content-Length: 9\r\n\r\n{}",
        ] {
            let mut stream = bytes.as_bytes();
            assert!(read(&mut stream).await.is_err(), "{bytes}");
        }
    }
}
