//! Downloads from a hub on loopback: layout, resuming, secrets, the cache.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use checkpoint::Checkpoint;
use checkpoint::hub::{HubError, HubOptions, HubProgress, resolve};
use serde_json::json;

use crate::made_up::{hybrid_config, tensors};
use crate::made_up_hub::{COMMIT, Cache, REPO, Repository, WEIGHTS, get, ranged, serve, sha256};
use crate::server::{Reply, Request, Server};

#[test]
fn a_fresh_download_fills_the_cache_in_the_hubs_own_layout() {
    let repository = Repository::new();
    let server = serve(&repository);
    let cache = Cache::new();
    let mut seen = Vec::new();
    let mut progress = |p: HubProgress<'_>| {
        seen.push((p.file.to_string(), p.done_bytes, p.total_bytes));
    };
    let resolved = resolve(REPO, &cache.options(&server), &mut progress).unwrap();

    assert_eq!(resolved.folder, cache.repo(&format!("snapshots/{COMMIT}")));
    assert_eq!(resolved.commit.as_deref(), Some(COMMIT));
    assert_eq!(std::fs::read_to_string(cache.repo("refs/main")).unwrap(), COMMIT);
    let link = std::fs::read_link(resolved.folder.join(WEIGHTS)).unwrap();
    assert_eq!(link, Path::new("../../blobs").join(sha256(repository.weights())));
    assert_eq!(std::fs::read(resolved.folder.join(WEIGHTS)).unwrap(), repository.weights());
    let mut names: Vec<_> = std::fs::read_dir(&resolved.folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["config.json", WEIGHTS, "tokenizer.json"]);
    let total = repository.weights().len() as u64;
    assert_eq!(seen.last().unwrap(), &(WEIGHTS.to_string(), total, Some(total)));
    Checkpoint::open(&resolved.folder).unwrap();

    // Everything is there: the second time costs one question.
    let before = server.requests().len();
    assert_eq!(get(&cache.options(&server)).unwrap(), resolved);
    assert_eq!(server.requests().len(), before + 1);
}

#[test]
fn shards_are_taken_from_the_index() {
    let mut repository = Repository::new();
    let (_, weights) = repository.files.pop().unwrap();
    let shard = "model-00001-of-00001.safetensors";
    let map: serde_json::Map<_, _> =
        tensors(&hybrid_config()).keys().map(|name| (name.clone(), json!(shard))).collect();
    let index = json!({ "weight_map": map }).to_string().into_bytes();
    repository.files.push(("model.safetensors.index.json".to_string(), index));
    repository.files.push((shard.to_string(), weights));
    let server = serve(&repository);
    let cache = Cache::new();
    let folder = get(&cache.options(&server)).unwrap().folder;
    assert!(folder.join(shard).exists() && !folder.join("consolidated.safetensors").exists());
    Checkpoint::open(&folder).unwrap();
}

#[test]
fn a_cut_connection_is_resumed_where_it_stopped() {
    let repository = Repository::new();
    let n_gets = AtomicUsize::new(0);
    let server = {
        let repository = repository.clone();
        Server::start(move |request| {
            let reply = repository.answer(request);
            let is_get = request.method == "GET" && request.path.ends_with(WEIGHTS);
            // More cuts than attempts: each one brings the file forward, so none counts.
            match is_get && n_gets.fetch_add(1, Ordering::Relaxed) < 8 {
                true => reply.cut_after(100),
                false => reply,
            }
        })
    };
    let cache = Cache::new();
    let folder = get(&cache.options(&server)).unwrap().folder;
    assert_eq!(std::fs::read(folder.join(WEIGHTS)).unwrap(), repository.weights());
    let ranges: Vec<_> =
        server.requests().iter().filter_map(|r| r.headers.get("range").cloned()).collect();
    let expected: Vec<_> = (1..=8).map(|i| format!("bytes={}-", 100 * i)).collect();
    assert_eq!(ranges, expected);
}

#[test]
fn a_partial_file_of_an_earlier_run_is_continued_and_a_damaged_one_replaced() {
    let repository = Repository::new();
    let weights = repository.weights();
    let etag = sha256(weights);
    let longer = [weights, b"and more"].concat();
    for (left, asked) in [
        (&weights[..300], Some("bytes=300-")),
        (weights, None),
        (&[7; 300], Some("bytes=300-")),
        (&longer, Some(&*format!("bytes={}-", longer.len()))),
    ] {
        let server = serve(&repository);
        let cache = Cache::new();
        std::fs::create_dir_all(cache.repo("blobs")).unwrap();
        std::fs::write(cache.repo(&format!("blobs/{etag}.incomplete")), left).unwrap();
        let folder = get(&cache.options(&server)).unwrap().folder;
        assert_eq!(std::fs::read(folder.join(WEIGHTS)).unwrap(), weights);
        let requests = server.requests();
        let range = requests.iter().find_map(|r| r.headers.get("range"));
        assert_eq!(range.map(String::as_str), asked);
    }
}

#[test]
fn a_server_that_ignores_ranges_starts_over() {
    let repository = Repository::new();
    let server = {
        let repository = repository.clone();
        Server::start(move |request| {
            let mut request = request.clone();
            request.headers.remove("range");
            repository.answer(&request)
        })
    };
    let cache = Cache::new();
    let etag = sha256(repository.weights());
    std::fs::create_dir_all(cache.repo("blobs")).unwrap();
    std::fs::write(cache.repo(&format!("blobs/{etag}.incomplete")), "half").unwrap();
    let folder = get(&cache.options(&server)).unwrap().folder;
    assert_eq!(std::fs::read(folder.join(WEIGHTS)).unwrap(), repository.weights());
}

#[test]
fn the_token_goes_to_the_hub_and_not_to_where_it_redirects() {
    let mut repository = Repository::new();
    let store = {
        let weights = repository.weights().to_vec();
        Server::start(move |request| ranged(request, &weights))
    };
    repository.store = Some(store.url.clone());
    let server = serve(&repository);
    let cache = Cache::new();
    let options = HubOptions { token: Some("hf_secret".to_string()), ..cache.options(&server) };
    let folder = get(&options).unwrap().folder;
    assert_eq!(std::fs::read(folder.join(WEIGHTS)).unwrap(), repository.weights());

    let authorization = |r: &Request| r.headers.get("authorization").cloned();
    let at_hub: Vec<_> = server.requests().iter().map(authorization).collect();
    assert!(at_hub.len() >= 7);
    assert!(at_hub.iter().all(|a| a.as_deref() == Some("Bearer hf_secret")), "{at_hub:?}");
    let at_store = store.requests();
    assert_eq!(at_store.len(), 1);
    assert_eq!(at_store[0].path, "/blob?signature=secret");
    assert_eq!(authorization(&at_store[0]), None);
    assert!(!format!("{options:?}").contains("hf_secret"));
}

#[test]
fn a_redirect_within_the_hub_keeps_the_token() {
    let repository = Repository::new();
    let server =
        Server::start(move |request| match request.path.strip_prefix("/api/resolve-cache") {
            None if request.path.contains("/resolve/") => Reply::new(307, "")
                .header("location", format!("/api/resolve-cache{}", request.path)),
            None => repository.answer(request),
            Some(path) => repository.answer(&Request { path: path.to_string(), ..request.clone() }),
        });
    let cache = Cache::new();
    let options = HubOptions { token: Some("t".to_string()), ..cache.options(&server) };
    get(&options).unwrap();
    assert!(server.requests().iter().all(|r| r.headers.contains_key("authorization")));
}

#[test]
fn offline_uses_the_cache_or_says_what_is_missing() {
    let server = serve(&Repository::new());
    let cache = Cache::new();
    let offline = HubOptions { offline: true, ..cache.options(&server) };
    let error = get(&offline).unwrap_err();
    assert!(matches!(error, HubError::Offline { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(REPO) && text.contains("HF_HUB_OFFLINE"), "{text}");
    assert!(server.requests().is_empty());

    let online = get(&cache.options(&server)).unwrap();
    let n_requests = server.requests().len();
    assert_eq!(get(&offline).unwrap(), online);
    let by_commit = HubOptions { revision: COMMIT.to_string(), ..offline };
    assert_eq!(get(&by_commit).unwrap(), online);
    assert_eq!(server.requests().len(), n_requests);
}

#[test]
fn two_downloads_at_once_share_the_work() {
    let repository = Repository::new();
    let server = serve(&repository);
    let cache = Cache::new();
    let options = cache.options(&server);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| get(&options).unwrap());
        }
    });
    let folder = cache.repo(&format!("snapshots/{COMMIT}"));
    assert_eq!(std::fs::read(folder.join(WEIGHTS)).unwrap(), repository.weights());
    let is_weights = |r: &&Request| r.method == "GET" && r.path.ends_with(WEIGHTS);
    assert_eq!(server.requests().iter().filter(is_weights).count(), 1);
}

#[test]
fn the_environment_is_read_as_the_hubs_library_reads_it() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("token"), "from-file\n").unwrap();
    let home = home.path().to_str().unwrap();
    let read = |vars: &[(&str, &str)]| {
        HubOptions::from_vars(&|name| {
            vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
        })
    };
    let plain = read(&[("HOME", "/home/me")]);
    assert_eq!(plain.cache, Path::new("/home/me/.cache/huggingface/hub"));
    assert_eq!(plain.endpoint, "https://huggingface.co");
    assert_eq!((plain.token.as_deref(), plain.offline), (None, false));
    assert_eq!(plain.revision, "main");

    let xdg = read(&[("HOME", "/home/me"), ("XDG_CACHE_HOME", "/cache")]);
    assert_eq!(xdg.cache, Path::new("/cache/huggingface/hub"));
    let own = read(&[("XDG_CACHE_HOME", "/cache"), ("HF_HOME", home)]);
    assert_eq!(own.cache, Path::new(home).join("hub"));
    assert_eq!(own.token.as_deref(), Some("from-file"));
    let all = read(&[
        ("HF_HOME", home),
        ("HF_HUB_CACHE", "/hub"),
        ("HF_TOKEN", " direct "),
        ("HF_ENDPOINT", "https://mirror.example/"),
        ("HF_HUB_OFFLINE", "True"),
    ]);
    assert_eq!(all.cache, Path::new("/hub"));
    assert_eq!(all.token.as_deref(), Some("direct"));
    assert_eq!((all.endpoint.as_str(), all.offline), ("https://mirror.example", true));
    let off = read(&[("HF_HUB_OFFLINE", "0"), ("HF_TOKEN", "")]);
    assert_eq!((off.offline, off.token), (false, None));
}
