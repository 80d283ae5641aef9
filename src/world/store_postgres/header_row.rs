//! How a header is stored: as JSON, with columns for what listings select and sort by.

use epitome_store::Header;

pub(crate) struct HeaderRow {
    pub header: String,
    pub updated_at: i64,
    pub cwd: Option<String>,
}

impl HeaderRow {
    pub fn of(header: &Header) -> HeaderRow {
        HeaderRow {
            header: serde_json::to_string(header).unwrap_or_default(),
            updated_at: header.updated_at as i64,
            cwd: header.cwd.to_str().map(str::to_owned),
        }
    }
}
