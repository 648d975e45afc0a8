//! What a hub may do wrong, or refuse, and what the person reads then.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use checkpoint::hub::{HubError, HubOptions, resolve};
use serde_json::json;

use crate::made_up_hub::{COMMIT, Cache, Repository, WEIGHTS, get, serve, sha256};
use crate::server::{Reply, Server};

#[test]
fn damaged_bytes_are_refused_and_removed() {
    let repository = Repository::new();
    let etag = sha256(repository.weights());
    for change in [|body: &mut Vec<u8>| body[500] ^= 1, |body: &mut Vec<u8>| body.push(0)] {
        let repository = repository.clone();
        let good = repository.weights().len();
        let server = Server::start(move |request| {
            if request.method == "GET" && request.path.ends_with(WEIGHTS) {
                let mut body = repository.weights().to_vec();
                change(&mut body);
                return Reply::new(200, body);
            }
            repository.answer(request)
        });
        let cache = Cache::new();
        let error = get(&cache.options(&server)).unwrap_err();
        assert!(matches!(error, HubError::Checksum { .. }), "{error}");
        assert!(error.to_string().contains(WEIGHTS), "{error}");
        assert!(good > 500 && !cache.repo(&format!("blobs/{etag}")).exists());
        assert!(!cache.repo(&format!("blobs/{etag}.incomplete")).exists());
    }
}

#[test]
fn a_signed_url_is_not_shown() {
    let mut repository = Repository::new();
    let store = Server::start(|_| Reply::new(503, ""));
    repository.store = Some(store.url.clone());
    let server = serve(&repository);
    let error = get(&Cache::new().options(&server)).unwrap_err();
    assert!(matches!(error, HubError::Status { status: 503, .. }), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");

    // Nor when the store cannot be reached at all.
    repository.store = Some("http://127.0.0.1:1".to_string());
    let server = serve(&repository);
    let error = get(&Cache::new().options(&server)).unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:1") && !error.contains("secret"), "{error}");
}

#[test]
fn an_unreachable_hub_falls_back_to_the_cache_and_says_so() {
    let server = serve(&Repository::new());
    let cache = Cache::new();
    let online = get(&cache.options(&server)).unwrap();
    // A wait of this length would not end: with a copy at hand there is no second attempt.
    let gone = HubOptions {
        endpoint: "http://127.0.0.1:1".into(),
        retry_wait: Duration::from_secs(600),
        ..cache.options(&server)
    };
    let resolved = get(&gone).unwrap();
    assert_eq!(resolved.folder, online.folder);
    assert!(resolved.notice.unwrap().contains("127.0.0.1:1"));
    let empty = Cache::new();
    let gone = HubOptions { endpoint: "http://127.0.0.1:1".into(), ..empty.options(&server) };
    assert!(matches!(get(&gone).unwrap_err(), HubError::Network { .. }));
}

#[test]
fn refusals_say_what_to_do() {
    for (status, token, parts) in [
        (404, None, &["some-org/some-model", "404", "spelling"][..]),
        (401, None, &["some-org/some-model", "401", "HF_TOKEN"]),
        (403, None, &["403", "gated", "HF_TOKEN"]),
        (403, Some("t"), &["403", "accept the model's terms"]),
    ] {
        let server = Server::start(move |_| Reply::new(status, "{}"));
        let cache = Cache::new();
        let options = HubOptions { token: token.map(str::to_string), ..cache.options(&server) };
        let error = get(&options).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
        // Asked once: asking again would not help.
        assert_eq!(server.requests().len(), 1);
    }
}

#[test]
fn a_gated_file_is_refused_where_the_list_is_open() {
    let repository = Repository::new();
    let server = Server::start(move |request| match request.path.ends_with(WEIGHTS) {
        true => Reply::new(401, ""),
        false => repository.answer(request),
    });
    let error = get(&Cache::new().options(&server)).unwrap_err();
    assert!(matches!(error, HubError::Refused { status: 401, .. }), "{error}");
    assert!(error.to_string().contains(WEIGHTS), "{error}");
}

#[test]
fn a_busy_server_is_asked_again_and_not_forever() {
    let repository = Repository::new();
    let n = Arc::new(Mutex::new(0));
    let server = Server::start(move |request| {
        let mut n = n.lock().unwrap();
        *n += 1;
        match *n {
            1 => Reply::new(429, "").header("retry-after", 0),
            2 | 4 => Reply::new(503, ""),
            _ => repository.answer(request),
        }
    });
    get(&Cache::new().options(&server)).unwrap();

    let server = Server::start(|_| Reply::new(500, ""));
    let error = get(&Cache::new().options(&server)).unwrap_err();
    assert!(matches!(error, HubError::Status { status: 500, .. }), "{error}");
    assert_eq!(server.requests().len(), 5);
}

#[test]
fn a_silent_server_is_given_up() {
    let server = Server::start(|_| {
        std::thread::sleep(Duration::from_millis(200));
        Reply::new(200, "{}")
    });
    let cache = Cache::new();
    let options = HubOptions { timeout: Duration::from_millis(20), ..cache.options(&server) };
    assert!(matches!(get(&options).unwrap_err(), HubError::Network { .. }));
}

#[test]
fn answers_that_are_no_hubs_are_refused() {
    let list = |files: &[&str]| {
        let siblings: Vec<_> = files.iter().map(|f| json!({ "rfilename": f })).collect();
        json!({ "sha": COMMIT, "siblings": siblings }).to_string()
    };
    for (body, part) in [
        ("<html>".to_string(), "unexpected answer"),
        ("{}".to_string(), "unexpected answer"),
        (json!({ "sha": "../../etc", "siblings": [] }).to_string(), "unexpected answer"),
        (list(&["model.gguf"]), "no model.safetensors"),
        // A file with an etag that is a path, or with none.
        (list(&["config.json"]), "etag"),
    ] {
        let server = Server::start(move |request| match request.path.starts_with("/api/") {
            true => Reply::new(200, body.clone()),
            false => Reply::new(200, "{}").header("etag", "\"../../escape\""),
        });
        let cache = Cache::new();
        let error = get(&cache.options(&server)).unwrap_err().to_string();
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
    // A redirect that never ends.
    let server = Server::start(|r| Reply::new(302, "").header("location", &r.path));
    let error = get(&Cache::new().options(&server)).unwrap_err().to_string();
    assert!(error.contains("too many redirects"), "{error}");
}

#[test]
fn a_local_path_wins_and_other_names_are_refused() {
    let server = Server::start(|_| Reply::new(500, ""));
    let cache = Cache::new();
    let options = cache.options(&server);
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().to_str().unwrap();
    let resolved = resolve(name, &options, &mut |_| {}).unwrap();
    assert_eq!((resolved.folder.as_path(), resolved.commit), (folder.path(), None));
    for name in ["./no-such-folder", "/no/such/folder", "name", "a/b/c", "../up/down", "a/..", ""] {
        let error = resolve(name, &options, &mut |_| {}).unwrap_err();
        assert!(matches!(error, HubError::NoSuchModel { .. }), "{name}: {error}");
    }
    assert!(server.requests().is_empty());
}
