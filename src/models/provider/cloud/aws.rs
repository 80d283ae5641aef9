//! Amazon Bedrock without a Bedrock API key: requests are signed with the access keys of an AWS account (Signature
//! Version 4). The keys come from the environment or from a profile in the files of the AWS command line.
//!
//! Tested with the vectors of AWS's signers, but not with a live service.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use percent_encoding::{AsciiSet, utf8_percent_encode};
use ring::{digest, hmac};

use crate::address::{RESERVED, host_of, path_of, sent_authority};
use crate::secret::Secret;

/// Maximum bytes of a file with keys.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The sources of keys, which are looked up when a request is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsSource {
    /// Keys from the environment; they take precedence over a profile, as in AWS's own clients.
    pub keys: Option<AwsKeys>,
    pub profile: String,
    /// The credentials file, then the configuration file.
    pub files: Vec<PathBuf>,
}

/// The keys of an AWS account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsKeys {
    pub id: String,
    pub secret: Secret,
    /// The session token of temporary keys.
    pub session: Option<Secret>,
}

impl AwsSource {
    /// Reads the environment, which may also specify the files.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> AwsSource {
        let keys = get("AWS_ACCESS_KEY_ID").zip(get("AWS_SECRET_ACCESS_KEY")).map(|(id, secret)| AwsKeys {
            id,
            secret: Secret::new(secret),
            session: get("AWS_SESSION_TOKEN").map(Secret::new),
        });
        let file = |variable: &str, name: &str| {
            let named = get(variable).map(PathBuf::from);
            named.or_else(|| Some(Path::new(&get("HOME")?).join(".aws").join(name)))
        };
        let files = [file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), file("AWS_CONFIG_FILE", "config")];
        AwsSource {
            keys,
            profile: get("AWS_PROFILE").unwrap_or_else(|| "default".to_owned()),
            files: files.into_iter().flatten().collect(),
        }
    }

    /// The region of the profile. Blocks.
    pub fn region(&self) -> Option<String> {
        let mut texts = self.files.iter().filter_map(|file| read(file));
        texts.find_map(|text| profile_value(&text, &self.profile, "region"))
    }

    /// Returns the keys to sign with. Blocks.
    pub fn find(&self) -> Result<AwsKeys, NoAwsKeys> {
        if let Some(keys) = &self.keys {
            return Ok(keys.clone());
        }
        let mut texts = self.files.iter().filter_map(|file| read(file));
        texts.find_map(|text| profile_keys(&text, &self.profile)).ok_or_else(|| {
            let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
            NoAwsKeys { profile: self.profile.clone(), files: files.join(" or ") }
        })
    }
}

/// No keys were found. The text is a clause that lists where they were looked for.
#[derive(Debug, thiserror::Error)]
#[error(
    "there are no AWS keys: AWS_BEARER_TOKEN_BEDROCK and AWS_ACCESS_KEY_ID are not set, and the profile {profile:?} has \
     no access key in {files} (`aws configure export-credentials --profile {profile} --format env` prints keys of other \
     kinds of profiles as variables)"
)]
pub struct NoAwsKeys {
    profile: String,
    files: String,
}

fn read(file: &Path) -> Option<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(file).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The access key of a profile.
fn profile_keys(text: &str, profile: &str) -> Option<AwsKeys> {
    let [id, secret, session] = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"]
        .map(|wanted| profile_value(text, profile, wanted));
    Some(AwsKeys { id: id?, secret: Secret::new(secret?), session: session.map(Secret::new) })
}

/// A setting of a profile. Sections are `[name]` in the credentials file and `[profile name]` in the configuration.
fn profile_value(text: &str, profile: &str, wanted: &str) -> Option<String> {
    let mut is_inside = false;
    text.lines().map(str::trim).find_map(|line| {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
            let name = name.trim();
            is_inside = name.strip_prefix("profile ").map_or(name, str::trim) == profile;
            return None;
        }
        let (name, value) = line.split_once('=').filter(|_| is_inside)?;
        (name.trim() == wanted).then(|| value.trim().to_owned()).filter(|value| !value.is_empty())
    })
}

/// The credential scope of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope<'a> {
    pub region: &'a str,
    pub service: &'static str,
}

impl<'a> Scope<'a> {
    /// The region and the service of a Bedrock host, such as `bedrock-runtime.REGION.amazonaws.com` or
    /// `bedrock-mantle.REGION.api.aws`; `None` for other hosts.
    pub fn of_host(base_url: &'a str) -> Option<Scope<'a>> {
        let host = host_of(base_url);
        let known = [("bedrock-runtime.", "bedrock"), ("bedrock-mantle.", "bedrock-mantle")];
        known.into_iter().find_map(|(prefix, service)| {
            let rest = host.strip_prefix(prefix)?;
            let region = rest
                .strip_suffix(".amazonaws.com")
                .or_else(|| rest.strip_suffix(".amazonaws.com.cn"))
                .or_else(|| rest.strip_suffix(".api.aws"))?;
            Some(Scope { region, service })
        })
    }
}

/// The signed parts of a request.
pub struct Unsigned<'a> {
    pub method: &'a str,
    pub url: &'a str,
    /// The header as sent; `None` without a body.
    pub content_type: Option<&'a str>,
    pub body: &'a [bytes::Bytes],
}

/// Returns the headers that sign a request: date, session token, authorization.
pub fn signature(
    request: &Unsigned<'_>,
    keys: &AwsKeys,
    scope: Scope<'_>,
    now: Timestamp,
) -> Vec<(String, Secret)> {
    let now = now.to_zoned(TimeZone::UTC);
    let (day, date) = (now.strftime("%Y%m%d").to_string(), now.strftime("%Y%m%dT%H%M%SZ").to_string());
    let host = sent_authority(request.url);
    // In the order of the header names.
    let mut signed: Vec<(&str, &str)> = Vec::new();
    signed.extend(request.content_type.map(|value| ("content-type", value)));
    signed.push(("host", &host));
    signed.push(("x-amz-date", &date));
    signed.extend(keys.session.as_ref().map(|token| ("x-amz-security-token", token.expose())));
    let names: Vec<&str> = signed.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let headers: String = signed.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
    let mut hashed = digest::Context::new(&digest::SHA256);
    request.body.iter().for_each(|piece| hashed.update(piece));
    let canonical = format!(
        "{}\n{}\n{}\n{headers}\n{names}\n{}",
        request.method,
        canonical_path(request.url),
        canonical_query(request.url),
        hex(hashed.finish().as_ref())
    );
    let scoped = format!("{day}/{}/{}/aws4_request", scope.region, scope.service);
    let hash = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scoped}\n{hash}");
    let mut key = format!("AWS4{}", keys.secret.expose()).into_bytes();
    for part in [day.as_str(), scope.region, scope.service, "aws4_request", &text] {
        key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), part.as_bytes()).as_ref().to_vec();
    }
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={}/{scoped}, SignedHeaders={names}, Signature={}",
        keys.id,
        hex(&key)
    );
    let mut headers = vec![("x-amz-date".to_owned(), Secret::new(date.clone()))];
    headers.extend(keys.session.clone().map(|token| ("x-amz-security-token".to_owned(), token)));
    headers.push(("authorization".to_owned(), Secret::new(authorization)));
    headers
}

/// The path of the URL, encoded once more: `%3A` on the wire is signed as `%253A`.
fn canonical_path(url: &str) -> String {
    const PLAIN: &AsciiSet = &RESERVED.remove(b'/');
    match path_of(url) {
        "" => "/".to_owned(),
        path => utf8_percent_encode(path, PLAIN).to_string(),
    }
}

fn canonical_query(url: &str) -> String {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let mut pairs: Vec<String> =
        pairs.map(|pair| if pair.contains('=') { pair.to_owned() } else { format!("{pair}=") }).collect();
    pairs.sort();
    pairs.join("&")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example_keys() -> AwsKeys {
        AwsKeys {
            id: "AKIDEXAMPLE".into(),
            secret: Secret::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
            session: None,
        }
    }

    fn signed(request: &Unsigned<'_>, keys: &AwsKeys, service: &'static str) -> String {
        let now: Timestamp = "2015-08-30T12:36:00Z".parse().expect("a time");
        let headers = signature(request, keys, Scope { region: "us-east-1", service }, now);
        headers.last().expect("the authorization").1.expose().to_owned()
    }

    /// `get-vanilla` of AWS's published test suite, and a request whose signature was compared with botocore's.
    #[test]
    fn signatures_equal_those_of_other_signers() {
        let plain =
            Unsigned { method: "GET", url: "https://example.amazonaws.com/", content_type: None, body: &[] };
        assert_eq!(
            signed(&plain, &example_keys(), "service"),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
             SignedHeaders=host;x-amz-date, \
             Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
        );
        let call = Unsigned {
            method: "POST",
            url: "https://bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude-x-v1%3A0/invoke-with-response-stream",
            content_type: Some("application/json"),
            body: &[
                bytes::Bytes::from_static(br#"{"anthropic_version":"#),
                bytes::Bytes::from_static(br#""bedrock-2023-05-31"}"#),
            ],
        };
        let signed = signed(&call, &example_keys(), "bedrock");
        assert!(
            signed.ends_with("=cdb0373b6cf4eb0f08d920a61e37249a6489ff6901b52af8001283322201ace2"),
            "{signed}"
        );
    }

    #[test]
    fn keys_are_read_from_the_environment_and_then_from_the_profile() {
        let home = tempfile::tempdir().expect("a directory");
        let aws = home.path().join(".aws");
        std::fs::create_dir(&aws).expect("a directory");
        let credentials = "[default]\naws_access_key_id = A1\naws_secret_access_key=s1\n\n[work]\n# temporary\n\
                           aws_access_key_id=A2\naws_secret_access_key = s2=\naws_session_token = t2\n";
        std::fs::write(aws.join("credentials"), credentials).expect("a file");
        let config = "[profile other]\naws_access_key_id = A3\naws_secret_access_key = s3\n[profile none]\nregion = x\n";
        std::fs::write(aws.join("config"), config).expect("a file");
        let with = |pairs: &[(&str, &str)]| {
            AwsSource::read(|name| match name {
                "HOME" => Some(home.path().display().to_string()),
                name => pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()),
            })
        };
        let of_environment =
            [("AWS_ACCESS_KEY_ID", "A0"), ("AWS_SECRET_ACCESS_KEY", "s0"), ("AWS_PROFILE", "work")];
        for (pairs, id, session) in [
            (&of_environment[..], "A0", None),
            (&[], "A1", None),
            (&[("AWS_PROFILE", "work")], "A2", Some("t2")),
            (&[("AWS_PROFILE", "other")], "A3", None),
        ] {
            let keys = with(pairs).find().expect("keys");
            assert_eq!((keys.id.as_str(), keys.session.as_ref().map(Secret::expose)), (id, session));
        }
        let none = with(&[("AWS_PROFILE", "none")]);
        assert_eq!(none.region().as_deref(), Some("x"));
        let error = none.find().expect_err("no keys").to_string();
        assert!(error.contains("aws configure export-credentials --profile none"), "{error}");
        assert!(error.contains("\"none\"") && error.contains("credentials"), "{error}");
    }

    #[test]
    fn the_host_says_for_which_service_and_region_a_request_is_signed() {
        for (url, expected) in [
            ("https://bedrock-runtime.eu-west-1.amazonaws.com/anthropic", Some(("eu-west-1", "bedrock"))),
            ("https://bedrock-mantle.us-east-2.api.aws/anthropic", Some(("us-east-2", "bedrock-mantle"))),
            ("https://api.anthropic.com", None),
            ("https://bedrock-runtime.us-east-1.amazonaws.com.example.org/anthropic", None),
        ] {
            let found = Scope::of_host(url).map(|scope| (scope.region, scope.service));
            assert_eq!(found, expected, "{url}");
        }
    }
}
