//! The part of PostgreSQL's protocol that the store uses, from the side of the server.

use std::io;

use tokio::io::{AsyncReadExt, DuplexStream};

/// A request of a client.
#[derive(Clone, Debug)]
pub enum Asked {
    /// One or more statements without parameters, and without rows.
    Simple(String),
    Statement(Statement),
}

#[derive(Clone, Debug)]
pub struct Statement {
    pub sql: String,
    params: Vec<Option<Vec<u8>>>,
}

/// A value of a row.
#[derive(Clone, Debug)]
pub enum Cell {
    Text(Option<String>),
    Int(i64),
    Flag(bool),
    Bytes(Vec<u8>),
}

#[derive(Debug)]
pub enum Answer {
    Nothing,
    /// Names don't matter. Without rows there are no columns either.
    Rows(Vec<Vec<Cell>>),
    Error {
        code: &'static str,
        message: String,
    },
}

impl Asked {
    pub fn only_reads(&self) -> bool {
        matches!(self, Asked::Statement(statement) if statement.sql.starts_with("select"))
    }
}

impl Statement {
    pub fn optional(&self, number: usize) -> Option<String> {
        let bytes = self.params[number - 1].clone();
        bytes.map(|bytes| String::from_utf8(bytes).expect("a text is UTF-8"))
    }

    pub fn text(&self, number: usize) -> String {
        self.optional(number).expect("it is not null")
    }

    pub fn bytes(&self, number: usize) -> Vec<u8> {
        self.params[number - 1].clone().expect("it is not null")
    }

    pub fn int(&self, number: usize) -> i64 {
        i64::from_be_bytes(self.bytes(number).try_into().expect("an int8 has 8 bytes"))
    }

    pub fn flag(&self, number: usize) -> bool {
        self.bytes(number) == [1]
    }

    /// The elements of an array.
    pub fn array(&self, number: usize) -> Vec<Vec<u8>> {
        // Dimensions, whether there are nulls, the type; and for the dimension its length and first index.
        let bytes = self.bytes(number);
        let mut rest = bytes.get(20..).unwrap_or_default();
        let mut elements = Vec::new();
        while !rest.is_empty() {
            let element = take_counted(&mut rest).expect("no element is null");
            elements.push(element.to_vec());
        }
        elements
    }
}

/// The first message of a connection.
pub async fn read_startup(stream: &mut DuplexStream) -> io::Result<()> {
    let length = stream.read_i32().await? as usize;
    let mut body = vec![0; length - 4];
    stream.read_exact(&mut body).await.map(drop)
}

/// The answer to it: no password is wanted.
pub fn welcome() -> Vec<u8> {
    let mut bytes = message(b'R', &0_i32.to_be_bytes());
    bytes.extend(message(b'K', &[0; 8]));
    bytes.extend(ready());
    bytes
}

/// Reads the next request; `None` if the client ends the connection.
pub async fn read(stream: &mut DuplexStream) -> io::Result<Option<Asked>> {
    let (mut sql, mut params) = (String::new(), Vec::new());
    loop {
        let kind = stream.read_u8().await?;
        let length = stream.read_i32().await? as usize;
        let mut body = vec![0; length - 4];
        stream.read_exact(&mut body).await?;
        let mut rest = &body[..];
        match kind {
            b'Q' => return Ok(Some(Asked::Simple(take_string(&mut rest)))),
            b'X' => return Ok(None),
            b'P' => {
                take_string(&mut rest);
                sql = take_string(&mut rest);
            }
            b'B' => {
                take_string(&mut rest);
                take_string(&mut rest);
                let formats = take_count(&mut rest);
                rest = &rest[2 * formats..];
                params =
                    (0..take_count(&mut rest)).map(|_| take_counted(&mut rest).map(<[u8]>::to_vec)).collect();
            }
            b'D' | b'E' | b'C' | b'H' => {}
            b'S' => return Ok(Some(Asked::Statement(Statement { sql, params }))),
            kind => panic!("an unknown message: {}", kind as char),
        }
    }
}

fn take_string(rest: &mut &[u8]) -> String {
    let end = rest.iter().position(|byte| *byte == 0).expect("a string ends");
    let text = String::from_utf8(rest[..end].to_vec()).expect("a string is UTF-8");
    *rest = &rest[end + 1..];
    text
}

fn take_count(rest: &mut &[u8]) -> usize {
    let (count, left) = rest.split_at(2);
    *rest = left;
    i16::from_be_bytes([count[0], count[1]]) as usize
}

fn take_counted<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, left) = rest.split_at(4);
    let length = i32::from_be_bytes(length.try_into().expect("there are four"));
    let (value, left) = left.split_at(length.max(0) as usize);
    *rest = left;
    (length >= 0).then_some(value)
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind], &(body.len() as i32 + 4).to_be_bytes()[..], body].concat()
}

fn ready() -> Vec<u8> {
    message(b'Z', b"I")
}

pub fn written(asked: &Asked, answer: &Answer) -> Vec<u8> {
    let mut bytes = Vec::new();
    match answer {
        Answer::Error { code, message: text } => {
            let body = format!("SERROR\0VERROR\0C{code}\0M{text}\0\0");
            bytes.extend(message(b'E', body.as_bytes()));
        }
        Answer::Nothing | Answer::Rows(_) => {
            if matches!(asked, Asked::Statement(_)) {
                bytes.extend(message(b'1', b""));
                bytes.extend(message(b'2', b""));
                let rows = match answer {
                    Answer::Rows(rows) => &rows[..],
                    _ => &[],
                };
                match rows.first() {
                    None => bytes.extend(message(b'n', b"")),
                    Some(row) => bytes.extend(message(b'T', &columns(row))),
                }
                rows.iter().for_each(|row| bytes.extend(message(b'D', &values(row))));
            }
            bytes.extend(message(b'C', b"SELECT 0\0"));
        }
    }
    bytes.extend(ready());
    bytes
}

fn columns(row: &[Cell]) -> Vec<u8> {
    let mut body = (row.len() as i16).to_be_bytes().to_vec();
    for cell in row {
        let (kind, length): (i32, i16) = match cell {
            Cell::Text(_) => (25, -1),
            Cell::Int(_) => (20, 8),
            Cell::Flag(_) => (16, 1),
            Cell::Bytes(_) => (17, -1),
        };
        body.extend(b"column\0");
        // No table, and no column of it.
        body.extend([0; 6]);
        body.extend(kind.to_be_bytes());
        body.extend(length.to_be_bytes());
        body.extend((-1_i32).to_be_bytes());
        // Binary.
        body.extend(1_i16.to_be_bytes());
    }
    body
}

fn values(row: &[Cell]) -> Vec<u8> {
    let mut body = (row.len() as i16).to_be_bytes().to_vec();
    for cell in row {
        let value = match cell {
            Cell::Text(text) => text.clone().map(String::into_bytes),
            Cell::Int(number) => Some(number.to_be_bytes().to_vec()),
            Cell::Flag(flag) => Some(vec![u8::from(*flag)]),
            Cell::Bytes(bytes) => Some(bytes.clone()),
        };
        body.extend(value.as_ref().map_or(-1, |value| value.len() as i32).to_be_bytes());
        body.extend(value.unwrap_or_default());
    }
    body
}
