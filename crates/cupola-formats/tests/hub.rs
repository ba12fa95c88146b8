//! Fetching models from a server on this machine that answers as the Hugging Face hub does.

#![cfg(feature = "hub")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cupola_formats::hub::{HubError, HubModel, HubOptions, Transfer, fetch};

/// How the server behaves beyond the ordinary.
#[derive(Clone, Copy, Default)]
struct Faults {
    /// Close the connection after so many bytes of each of the first so many transfers.
    drop_after: Option<(usize, usize)>,
    /// Answer ranges other than the first byte with the whole file.
    ignore_ranges: bool,
    /// Accept and never answer about files.
    silent: bool,
    /// Answer everything with this status.
    status: Option<u16>,
    /// Answer the first so many requests with 503.
    busy: usize,
    /// Large files are served from another address.
    redirect: bool,
}

#[derive(Default)]
struct Log {
    /// Path and range of each request.
    requests: Vec<(String, Option<String>)>,
    authorization: Vec<Option<String>>,
    transfers: usize,
}

struct Server {
    address: String,
    log: Arc<Mutex<Log>>,
}

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

impl Server {
    /// Serves the model `org/name` with these files.
    fn new(files: &[(&str, Vec<u8>)], faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::new(Mutex::new(Log::default()));
        let files: Arc<HashMap<String, Vec<u8>>> =
            Arc::new(files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect());
        let shared = log.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (files, log) = (files.clone(), shared.clone());
                std::thread::spawn(move || while answer(&stream, &files, &log, faults) {});
            }
        });
        Self { address, log }
    }

    fn options(&self, cache: &Path) -> HubOptions {
        HubOptions {
            endpoint: self.address.clone(),
            retries: 2,
            stall_timeout: Duration::from_secs(2),
            ..HubOptions::new(cache)
        }
    }

    /// Requests for contents, not for metadata.
    fn transfers(&self) -> Vec<(String, Option<String>)> {
        let log = self.log.lock().unwrap();
        log.requests.iter().filter(|(_, range)| range.as_deref().is_some_and(|r| r != "bytes=0-0")).cloned().collect()
    }
}

/// Answers one request; false when the connection is to be closed.
fn answer(stream: &TcpStream, files: &HashMap<String, Vec<u8>>, log: &Mutex<Log>, faults: Faults) -> bool {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return false;
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut range, mut authorization) = (None, None);
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header).unwrap_or(0) == 0 || header == "\r\n" {
            break;
        }
        let (name, value) = header.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "range" => range = Some(value.trim().to_owned()),
            "authorization" => authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let (requests, transfers) = {
        let mut log = log.lock().unwrap();
        log.requests.push((path.clone(), range.clone()));
        log.authorization.push(authorization);
        let content = range.as_deref().is_some_and(|range| range != "bytes=0-0");
        log.transfers += usize::from(content && !path.starts_with("/api"));
        (log.requests.len(), log.transfers)
    };
    let mut output = stream;
    let mut send = |status: &str, headers: &str, body: &[u8]| {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
        output.write_all(head.as_bytes()).and_then(|()| output.write_all(body)).is_ok()
    };
    if let Some(status) = faults.status {
        return send(&format!("{status} Error"), "", b"{\"error\":\"no\"}");
    }
    if requests <= faults.busy {
        return send("503 Busy", "", b"");
    }
    if path == "/api/models/org/name/revision/main" || path == "/api/models/org/name" {
        let mut names: Vec<&String> = files.keys().collect();
        names.sort();
        let siblings: Vec<_> = names.iter().map(|name| serde_json::json!({ "rfilename": name })).collect();
        let info = serde_json::json!({ "sha": COMMIT, "siblings": siblings });
        return send("200 OK", "Content-Type: application/json\r\n", info.to_string().as_bytes());
    }
    if faults.silent {
        std::thread::sleep(Duration::from_secs(30));
        return false;
    }
    let name = path.strip_prefix("/org/name/resolve/main/").or(path.strip_prefix("/cdn/"));
    let Some((name, bytes)) = name.and_then(|name| files.get_key_value(name)) else {
        return send("404 Not Found", "", b"Entry not found");
    };
    let tag = format!("{:x}{}", bytes.len(), name.replace(['/', '.'], ""));
    let common = format!("X-Repo-Commit: {COMMIT}\r\nX-Linked-Size: {}\r\n", bytes.len());
    if faults.redirect && path.starts_with("/org") && name.ends_with(".safetensors") {
        let headers = format!(
            "{common}X-Linked-Etag: \"{tag}\"\r\nLocation: http://{}/cdn/{name}\r\n",
            stream.local_addr().unwrap()
        );
        return send("302 Found", &headers, b"");
    }
    let headers = format!("{common}ETag: \"{tag}\"\r\n");
    let range = range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let (start, end) = range.map_or((0, bytes.len()), |(start, end)| {
        (start.parse().unwrap(), end.parse().map_or(bytes.len(), |end: usize| end + 1))
    });
    if faults.ignore_ranges && end != 1 {
        return send("200 OK", &headers, bytes);
    }
    let Some(part) = bytes.get(start..end.min(bytes.len())).filter(|part| !part.is_empty()) else {
        return send("416 Range Not Satisfiable", "", b"");
    };
    let headers = format!("{headers}Content-Range: bytes {start}-{}/{}\r\n", end - 1, bytes.len());
    if let Some((times, limit)) = faults.drop_after
        && end != 1
        && transfers <= times
    {
        let head = format!("HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\n{headers}\r\n", part.len());
        let mut output = stream;
        let _ = output.write_all(head.as_bytes()).and_then(|()| output.write_all(&part[..limit.min(part.len())]));
        let _ = stream.shutdown(std::net::Shutdown::Both);
        return false;
    }
    send("206 Partial Content", &headers, part)
}

fn weights() -> Vec<u8> {
    (0..300_000u32).flat_map(u32::to_le_bytes).collect()
}

fn checkpoint() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("README.md", b"read me".to_vec()),
        ("config.json", b"{}".to_vec()),
        ("model.safetensors", weights()),
        ("onnx/model.onnx", b"not this".to_vec()),
        ("tokenizer.json", b"{\"x\":1}".to_vec()),
    ]
}

fn model(name: &str) -> HubModel {
    name.parse().unwrap()
}

fn go_on(_: &Transfer<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn a_checkpoint_is_fetched_once_and_then_found_offline() {
    let server = Server::new(&checkpoint(), Faults::default());
    let cache = tempfile::tempdir().unwrap();
    let mut options = server.options(cache.path());
    options.token = Some("secret".to_owned());
    assert!(!format!("{options:?}").contains("secret"));
    let mut seen = Vec::new();
    let mut watch = |transfer: &Transfer<'_>| {
        seen.push((transfer.file.to_owned(), transfer.number, transfer.count, transfer.done, transfer.total));
        ControlFlow::Continue(())
    };
    let folder = fetch(&model("org/name"), &options, &mut watch).unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
    assert_eq!(std::fs::read(folder.join("config.json")).unwrap(), b"{}");
    assert!(folder.join("tokenizer.json").exists());
    assert!(!folder.join("README.md").exists() && !folder.join("onnx").exists());
    let size = weights().len() as u64;
    assert!(seen.contains(&("model.safetensors".to_owned(), 2, 3, size, size)), "the last report is of all bytes");
    let log = server.log.lock().unwrap();
    assert!(log.authorization.iter().all(|header| header.as_deref() == Some("Bearer secret")));
    let requests = log.requests.len();
    drop(log);

    // Again: only the question what there is.
    assert_eq!(fetch(&model("org/name"), &options, &mut go_on).unwrap(), folder);
    assert_eq!(server.log.lock().unwrap().requests.len(), requests + 1);

    // Offline: no question at all.
    options.offline = true;
    for name in ["org/name", &format!("org/name@{COMMIT}")] {
        assert_eq!(fetch(&model(name), &options, &mut go_on).unwrap(), folder);
    }
    assert_eq!(server.log.lock().unwrap().requests.len(), requests + 1);
    for name in ["org/other", "org/name@v2"] {
        let error = fetch(&model(name), &options, &mut go_on).unwrap_err();
        assert!(matches!(error, HubError::NotCached { .. }), "{error}");
    }
}

#[test]
fn a_broken_transfer_is_continued() {
    let server = Server::new(&checkpoint(), Faults { drop_after: Some((3, 100_000)), ..Faults::default() });
    let cache = tempfile::tempdir().unwrap();
    let folder = fetch(&model("org/name"), &server.options(cache.path()), &mut go_on).unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
    let resumed = server
        .transfers()
        .into_iter()
        .filter(|(path, range)| path.ends_with("model.safetensors") && range.as_deref() != Some("bytes=0-"));
    assert!(resumed.count() > 0, "{:?}", server.transfers());
}

#[test]
fn a_later_call_continues_what_an_earlier_one_began() {
    let server = Server::new(&checkpoint(), Faults { drop_after: Some((2, 100_000)), ..Faults::default() });
    let cache = tempfile::tempdir().unwrap();
    let mut options = server.options(cache.path());
    options.retries = 0;
    // The first transfer, of two bytes, is over before it can break; the second breaks.
    let error = fetch(&model("org/name"), &options, &mut go_on).unwrap_err();
    assert!(matches!(error, HubError::Network { .. }), "{error}");
    let folder = fetch(&model("org/name"), &options, &mut go_on).unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
    let (_, range) =
        server.transfers().into_iter().rev().find(|(path, _)| path.ends_with("model.safetensors")).unwrap();
    assert_eq!(range.as_deref(), Some("bytes=100000-"));
}

#[test]
fn a_complete_but_unfinished_part_is_no_obstacle() {
    let server = Server::new(&checkpoint(), Faults::default());
    let cache = tempfile::tempdir().unwrap();
    let blobs = cache.path().join("models--org--name/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join("2configjson.part"), b"{}").unwrap();
    let folder = fetch(&model("org/name"), &server.options(cache.path()), &mut go_on).unwrap();
    assert_eq!(std::fs::read(folder.join("config.json")).unwrap(), b"{}");
}

#[test]
fn contents_that_are_there_already_are_not_fetched_again() {
    let server = Server::new(&checkpoint(), Faults::default());
    let cache = tempfile::tempdir().unwrap();
    let options = server.options(cache.path());
    let folder = fetch(&model("org/name"), &options, &mut go_on).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let before = server.transfers().len();
    let folder = fetch(&model("org/name"), &options, &mut go_on).unwrap();
    assert_eq!(server.transfers().len(), before);
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
}

#[test]
fn a_server_without_ranges_cannot_spoil_a_file() {
    let faults = Faults { ignore_ranges: true, drop_after: None, ..Faults::default() };
    let server = Server::new(&checkpoint(), faults);
    let cache = tempfile::tempdir().unwrap();
    let blobs = cache.path().join("models--org--name/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    // A part from before: the server sends everything, so the result is too long and thrown away, then fetched whole.
    std::fs::write(blobs.join(format!("{:x}modelsafetensors.part", weights().len())), &weights()[..1000]).unwrap();
    let folder = fetch(&model("org/name"), &server.options(cache.path()), &mut go_on).unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
}

#[test]
fn large_files_come_from_where_the_hub_points() {
    let server = Server::new(&checkpoint(), Faults { redirect: true, ..Faults::default() });
    let cache = tempfile::tempdir().unwrap();
    let folder = fetch(&model("org/name"), &server.options(cache.path()), &mut go_on).unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
    assert!(server.log.lock().unwrap().requests.iter().any(|(path, _)| path == "/cdn/model.safetensors"));
}

#[test]
fn one_gguf_file_is_fetched() {
    let files =
        [("m-Q8_0.gguf", b"GGUF8".to_vec()), ("m-Q4_K_M.gguf", b"GGUF4".to_vec()), ("README.md", b"x".to_vec())];
    let server = Server::new(&files, Faults::default());
    let cache = tempfile::tempdir().unwrap();
    let options = server.options(cache.path());
    let file = fetch(&model("org/name"), &options, &mut go_on).unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), b"GGUF4");
    assert!(file.ends_with("m-Q4_K_M.gguf") && !file.with_file_name("m-Q8_0.gguf").exists());
    let file = fetch(&model("org/name:Q8_0"), &options, &mut go_on).unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), b"GGUF8");
    let error = fetch(&model("org/name:Q2_K"), &options, &mut go_on).unwrap_err().to_string();
    assert_eq!(error, "org/name has no GGUF file for \"Q2_K\"; it has m-Q4_K_M.gguf, m-Q8_0.gguf");
}

#[test]
fn refusals_say_what_to_do() {
    let cache = tempfile::tempdir().unwrap();
    let message = |status, token: Option<&str>| {
        let server = Server::new(&checkpoint(), Faults { status: Some(status), ..Faults::default() });
        let mut options = server.options(cache.path());
        (options.token, options.retries) = (token.map(str::to_owned), 0);
        fetch(&model("org/name"), &options, &mut go_on).unwrap_err().to_string()
    };
    let without = message(401, None);
    assert!(without.contains("check the spelling") && without.ends_with("needs an access token"), "{without}");
    let with = message(403, Some("secret"));
    assert!(with.ends_with("the token does not give access to it") && !with.contains("secret"), "{with}");
    assert_eq!(message(404, None), "the hub has no model org/name (HTTP 404): check the spelling");
    assert!(message(500, None).ends_with("HTTP 500"));
    assert!(message(429, None).ends_with("HTTP 429, too many requests: try again later"));
    let mut options = HubOptions::new(cache.path());
    (options.endpoint, options.retries) = ("http://127.0.0.1:1".to_owned(), 0);
    let nobody = fetch(&model("org/name"), &options, &mut go_on).unwrap_err();
    assert!(matches!(nobody, HubError::Network { .. }) && nobody.to_string().contains("127.0.0.1:1"), "{nobody}");
}

#[test]
fn a_busy_hub_is_asked_again() {
    let server = Server::new(&checkpoint(), Faults { busy: 2, ..Faults::default() });
    let cache = tempfile::tempdir().unwrap();
    assert!(fetch(&model("org/name"), &server.options(cache.path()), &mut go_on).is_ok());
}

#[test]
fn a_silent_server_holds_nobody() {
    let server = Server::new(&checkpoint(), Faults { silent: true, ..Faults::default() });
    let cache = tempfile::tempdir().unwrap();
    let mut options = server.options(cache.path());
    options.retries = 0;
    let start = Instant::now();
    let error = fetch(&model("org/name"), &options, &mut go_on).unwrap_err();
    assert!(matches!(error, HubError::Stalled { seconds: 2, .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10));
    // And the caller can stop before.
    options.stall_timeout = Duration::from_secs(60);
    let start = Instant::now();
    let mut watch = |_: &Transfer<'_>| {
        if start.elapsed() > Duration::from_millis(300) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    assert!(matches!(fetch(&model("org/name"), &options, &mut watch), Err(HubError::Cancelled)));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_transfer_can_be_stopped_and_goes_on_later() {
    let server = Server::new(&checkpoint(), Faults::default());
    let cache = tempfile::tempdir().unwrap();
    let options = server.options(cache.path());
    let mut watch = |transfer: &Transfer<'_>| {
        if transfer.done > 100_000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    assert!(matches!(fetch(&model("org/name"), &options, &mut watch), Err(HubError::Cancelled)));
    let folder = fetch(&model("org/name"), &options, &mut go_on).unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
}

#[test]
fn file_names_that_lead_out_of_the_cache_are_refused() {
    let files = [
        ("config.json", b"{}".to_vec()),
        ("model/../../../../x.safetensors", b"x".to_vec()),
        ("..\\m.safetensors", b"x".to_vec()),
    ];
    let server = Server::new(&files, Faults::default());
    let cache = tempfile::tempdir().unwrap();
    let error = fetch(&model("org/name"), &server.options(cache.path()), &mut go_on).unwrap_err();
    assert!(matches!(&error, HubError::Answer { reason, .. } if reason.contains("m.safetensors")), "{error}");
}
