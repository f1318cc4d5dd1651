//! Downloads from a hub on this machine, which also cuts, delays, redirects, limits and lies.

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use common::{COMMIT, Folder, Reply, Repository, Seen, Server, bytes, sha256};
use hologram_hub::{Hub, HubError, Request, Step};

fn model() -> Repository {
    Repository::of(&[
        ("README.md", b"A model."),
        ("m-Q4_K_M.gguf", &bytes(10_500)),
        ("m-Q8_0.gguf", &bytes(20_001)),
        ("sub folder/m-F16-00001-of-00002.gguf", &bytes(3_000)),
        ("sub folder/m-F16-00002-of-00002.gguf", &bytes(2_999)),
        ("config.json", b"{}"),
        ("tokenizer.json", &bytes(500)),
        ("model.safetensors", &bytes(5_000)),
    ])
}

fn request(wanted: &str) -> Request {
    format!("hf:some/model{wanted}").parse().unwrap()
}

fn pull(hub: &Hub, wanted: &str) -> Result<std::path::PathBuf, HubError> {
    hub.fetch(&hub.plan(&request(wanted))?, &mut |_| ())
}

fn is_file(seen: &Seen) -> bool {
    seen.path.contains("/resolve/")
}

#[test]
fn models_come_into_the_shared_cache() {
    let (repository, cache) = (model(), Folder::new("layout"));
    let served = repository.clone();
    let server = Server::start(move |seen| served.answer(seen));
    let hub = Hub::new(server.settings(&cache)).unwrap();
    assert!(hub.cached(&request("")).unwrap().is_none());

    let plan = hub.plan(&request("")).unwrap();
    assert_eq!((plan.choice.to_string().as_str(), plan.size()), ("Q4_K_M", 10_500));
    let others: Vec<(String, u64)> = plan.others.iter().map(|(choice, size)| (choice.to_string(), *size)).collect();
    assert_eq!(others, [("Q8_0".into(), 20_001), ("F16".into(), 5_999), ("safetensors".into(), 5_502)]);
    let mut reports = Vec::new();
    let path = hub.fetch(&plan, &mut |p| reports.push(p)).unwrap();
    assert!(reports.windows(2).all(|w| w[0].step != w[1].step || w[0].done <= w[1].done), "{reports:?}");
    assert_eq!(reports.last().map(|p| (p.step, p.done, p.total)), Some((Step::Checking, 10_500, 10_500)));

    // The layout that huggingface_hub reads.
    let root = cache.0.join("models--some--model");
    let content = &repository.files["m-Q4_K_M.gguf"];
    let blob = root.join("blobs").join(sha256(content));
    assert_eq!(path, root.join("snapshots").join(COMMIT).join("m-Q4_K_M.gguf"));
    assert_eq!(std::fs::read(&path).unwrap(), *content);
    assert_eq!(std::fs::canonicalize(&path).unwrap(), std::fs::canonicalize(&blob).unwrap());
    #[cfg(unix)]
    assert_eq!(std::fs::read_link(&path).unwrap(), Path::new("../../blobs").join(sha256(content)));
    assert_eq!(std::fs::read_to_string(root.join("refs/main")).unwrap(), COMMIT);

    // A second time nothing is sent, and without the network it is found.
    let sent = server.sent();
    assert_eq!((sent, pull(&hub, ":m-Q4_K_M.gguf").unwrap()), (10_500, path.clone()));
    assert_eq!(server.sent(), sent);
    for wanted in ["", ":q4_k_m", ":m-Q4_K_M.gguf"] {
        assert_eq!(hub.cached(&request(wanted)).unwrap().unwrap().path, path, "{wanted}");
    }
    assert!(hub.cached(&request(":Q8_0")).unwrap().is_none());

    // Models in parts, in folders with spaces, and of safetensors.
    let parts = pull(&hub, ":F16").unwrap();
    assert!(parts.ends_with("sub folder/m-F16-00001-of-00002.gguf"));
    let second = parts.with_file_name("m-F16-00002-of-00002.gguf");
    assert_eq!(std::fs::read(second).unwrap(), repository.files["sub folder/m-F16-00002-of-00002.gguf"]);
    let folder = pull(&hub, ":safetensors").unwrap();
    assert_eq!(folder, root.join("snapshots").join(COMMIT));
    assert_eq!(std::fs::read(folder.join("config.json")).unwrap(), b"{}");
    // Only what a model consists of, and nothing unfinished.
    assert!(!folder.join("README.md").exists());
    assert!(!cache.files().iter().any(|file| file.contains("hologram-p")), "{:?}", cache.files());

    // All models are listed; removing one keeps the others.
    let listed = || hologram_hub::found(&cache.0).into_iter().filter(|found| found.name.starts_with("hf:"));
    let names: Vec<(String, u64)> = listed().map(|found| (found.name, found.size)).collect();
    let name = |label: &str| format!("hf:some/model:{label}");
    assert_eq!(names, [(name("F16"), 5_999), (name("Q4_K_M"), 10_500), (name("safetensors"), 5_502)]);
    let removed = hub.remove(&request(":f16")).unwrap();
    assert_eq!((removed.files.len(), removed.bytes), (2, 5_999));
    assert!(matches!(hub.remove(&request(":F16")), Err(HubError::NoFile { .. })));
    assert_eq!(listed().count(), 2);
    assert!(hub.remove(&request("")).unwrap().bytes >= 16_000);
    assert!(!root.exists() && matches!(hub.remove(&request("")), Err(HubError::NoFile { .. })));
}

/// What goes wrong with requests of files, and passes.
#[test]
fn faults_that_pass_are_overcome() {
    type Fault = fn(&Seen, Reply) -> Reply;
    let faults: [(&str, Fault); 8] = [
        ("cut in each answer", |_, reply| Reply { cut: Some(reply.body.len().div_ceil(2)), ..reply }),
        ("cut before the first byte", |seen, reply| match seen.attempt {
            1 | 2 => Reply { cut: Some(0), ..reply },
            _ => reply,
        }),
        ("silent", |seen, reply| match seen.attempt {
            1 => Reply { delay: Duration::from_millis(900), ..reply },
            _ => reply,
        }),
        ("busy", |seen, reply| if seen.attempt < 3 { Reply::status(503) } else { reply }),
        ("limited", |seen, reply| if seen.attempt < 3 { Reply::status(429).header("retry-after", 0) } else { reply }),
        ("another range", |seen, reply| match seen.attempt {
            1 => Reply { headers: vec![("content-range".into(), "bytes 0-0/1".into())], ..reply },
            _ => reply,
        }),
        (
            "no range named",
            |seen, reply| if seen.attempt == 1 { Reply { headers: Vec::new(), ..reply } } else { reply },
        ),
        ("slow", |_, reply| Reply { delay: Duration::from_millis(30), ..reply }),
    ];
    let mut threads = Vec::new();
    for (name, fault) in faults {
        threads.push(std::thread::spawn(move || {
            let (repository, cache) = (model(), Folder::new("passing"));
            let content = repository.files["m-Q4_K_M.gguf"].clone();
            let server = Server::start(move |seen| {
                let reply = repository.answer(seen);
                if is_file(seen) { fault(seen, reply) } else { reply }
            });
            let hub = Hub::new(server.settings(&cache)).unwrap();
            let path = pull(&hub, "").unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(std::fs::read(path).unwrap() == content, "{name}");
        }));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// What goes wrong and stays wrong: an error that says so, and nothing that could be taken for a model.
#[test]
fn lies_are_never_taken_for_a_model() {
    type Fault = fn(&Seen, Reply) -> Reply;
    let list = |json: &str| Reply { status: 200, body: json.into(), ..Reply::default() };
    let _ = list;
    fn listed(seen: &Seen, reply: Reply, from: &str, to: &str) -> Reply {
        let body = String::from_utf8(reply.body.clone()).unwrap_or_default();
        if is_file(seen) { reply } else { Reply { body: body.replace(from, to).into(), ..reply } }
    }
    let files: [(&str, Fault, &str); 19] = [
        (
            "another content",
            |seen, mut reply| {
                if is_file(seen) {
                    reply.body.iter_mut().for_each(|b| *b ^= 1);
                }
                reply
            },
            "arrived damaged",
        ),
        (
            "one bit",
            |seen, mut reply| {
                if seen.headers.get("range").is_some_and(|range| range == "bytes=5000-5999") {
                    reply.body[500] ^= 4;
                }
                reply
            },
            "arrived damaged",
        ),
        (
            "a web page",
            |seen, reply| match is_file(seen) {
                true => Reply { status: 200, body: b"<!DOCTYPE html><p>Log in".to_vec(), ..Reply::default() },
                false => reply,
            },
            "is a web page instead of the file",
        ),
        (
            "always cut",
            |seen, reply| if is_file(seen) { Reply { cut: Some(0), ..reply } } else { reply },
            "(4 attempts)",
        ),
        ("always busy", |seen, reply| if is_file(seen) { Reply::status(502) } else { reply }, "answered 502"),
        ("round in circles", |seen, _| Reply::status(302).header("location", &seen.path), "without end"),
        ("gone", |seen, reply| if is_file(seen) { Reply::status(410) } else { reply }, "answered 410"),
        (
            "gated",
            |seen, reply| match is_file(seen) {
                true => Reply::status(403).header("x-error-code", "GatedRepo"),
                false => reply,
            },
            "is gated: accept its terms on http",
        ),
        (
            "not there",
            |_, _| Reply::status(404).header("x-error-code", "RepoNotFound"),
            "there is no model some/model at http",
        ),
        ("private", |_, _| Reply::status(401).header("x-error-code", "RepoNotFound"), "if it is private, set HF_TOKEN"),
        (
            "no list",
            |_, _| Reply { status: 200, body: b"<html>".to_vec(), ..Reply::default() },
            "is a web page, not a list",
        ),
        ("list cut", |_, reply| Reply { cut: Some(50), ..reply }, "(4 attempts)"),
        ("path upward", |s, r| listed(s, r, "README.md", "../../../evil"), "no path in a repository"),
        ("absolute path", |s, r| listed(s, r, "README.md", "/tmp/evil"), "no path in a repository"),
        ("commit upward", |s, r| listed(s, r, COMMIT, "../../../../evil"), "not one"),
        ("checksum upward", |s, r| listed(s, r, &sha256(&bytes(10_500)), "../../evil"), "no size and checksum"),
        (
            "no room on the disk",
            |s, r| listed(s, r, r#""size":10500,"pointer"#, r#""size":999999999999999,"pointer"#),
            "of room",
        ),
        ("no model", |s, r| listed(s, r, "gguf", "bin"), ""),
        ("another size", |s, r| listed(s, r, r#""size":10500,"pointer"#, r#""size":10600,"pointer"#), ""),
    ];
    let mut threads = Vec::new();
    for (name, fault, reason) in files {
        threads.push(std::thread::spawn(move || {
            let (mut repository, cache) = (model(), Folder::new("lies"));
            repository.files.remove("config.json");
            let server = Server::start(move |seen| {
                // A list may name ranges that the file does not have.
                let asked = seen.headers.get("range").and_then(|r| r.split('-').nth(1)?.parse().ok()).unwrap_or(0);
                if asked >= 10_500 {
                    return Reply::status(416);
                }
                fault(seen, repository.answer(seen))
            });
            let hub = Hub::new(server.settings(&cache)).unwrap();
            let error = pull(&hub, "").expect_err(name).to_string();
            assert!(error.contains(reason), "{name}: {error}");
            assert!(!error.contains('\n') && error.len() < 400, "{name}: {error}");
            assert!(hub.cached(&request("")).unwrap().is_none(), "{name}");
            let files = cache.files();
            let only =
                |file: &String| file.ends_with(".lock") || file.contains("/blobs/") && file.contains(".hologram-p");
            assert!(files.iter().all(only), "{name}: {files:?}");
        }));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(!Path::new("/tmp/evil").exists());
}

#[test]
fn a_cut_download_goes_on_where_it_stopped() {
    let (repository, cache) = (model(), Folder::new("resume"));
    let content = repository.files["m-Q8_0.gguf"].clone();
    let broken = Arc::new(AtomicBool::new(true));
    let state = broken.clone();
    let server = Server::start(move |seen| {
        let late = seen.headers.get("range").is_some_and(|range| range.len() > "bytes=9000-9999".len());
        if late && state.load(Ordering::SeqCst) { Reply::status(500) } else { repository.answer(seen) }
    });
    let hub = Hub::new(server.settings(&cache)).unwrap();
    assert!(pull(&hub, ":Q8_0").unwrap_err().to_string().contains("answered 500"));
    assert!(hub.cached(&request(":Q8_0")).unwrap().is_none());
    let before = server.sent();
    assert!((8_000..=10_000).contains(&before), "{before}");
    broken.store(false, Ordering::SeqCst);
    let path = pull(&hub, ":Q8_0").unwrap();
    assert!(std::fs::read(&path).unwrap() == content);
    assert_eq!(server.sent(), content.len());

    // What lay damaged on the disk is brought once more.
    hub.remove(&request(":Q8_0")).unwrap();
    broken.store(true, Ordering::SeqCst);
    assert!(pull(&hub, ":Q8_0").is_err());
    let part = cache.files().into_iter().find(|file| file.ends_with(".hologram-part")).unwrap();
    let mut damaged = std::fs::read(cache.0.join(&part)).unwrap();
    damaged[10] ^= 1;
    std::fs::write(cache.0.join(&part), damaged).unwrap();
    broken.store(false, Ordering::SeqCst);
    assert!(std::fs::read(pull(&hub, ":Q8_0").unwrap()).unwrap() == content);

    // A record of other pieces is not believed.
    hub.remove(&request(":Q8_0")).unwrap();
    broken.store(true, Ordering::SeqCst);
    assert!(pull(&hub, ":Q8_0").is_err());
    let mut settings = server.settings(&cache);
    settings.piece = 1500;
    broken.store(false, Ordering::SeqCst);
    assert!(std::fs::read(pull(&Hub::new(settings).unwrap(), ":Q8_0").unwrap()).unwrap() == content);
}

/// Another process goes on at the byte within a piece, and a server without ranges is read from the beginning again.
#[test]
fn a_cut_piece_goes_on_at_its_byte() {
    for ranges in [true, false] {
        let (repository, cache) = (model(), Folder::new("byte"));
        let content = repository.files["m-Q4_K_M.gguf"].clone();
        let (broken, whole) = (Arc::new(AtomicBool::new(true)), content.clone());
        let state = broken.clone();
        let server = Server::start(move |seen| {
            if !is_file(seen) {
                return repository.answer(seen);
            }
            let reply = match ranges {
                true => repository.answer(seen),
                false => Reply { status: 200, body: whole.clone(), ..Reply::default() },
            };
            match state.load(Ordering::SeqCst) {
                true if seen.headers["range"].starts_with("bytes=0-") => Reply { cut: Some(4_000), ..reply },
                true => Reply::status(500),
                false => reply,
            }
        });
        let mut settings = server.settings(&cache);
        settings.piece = 1 << 20;
        assert!(pull(&Hub::new(settings.clone()).unwrap(), "").unwrap_err().to_string().contains("answered 500"));
        broken.store(false, Ordering::SeqCst);
        assert!(std::fs::read(pull(&Hub::new(settings).unwrap(), "").unwrap()).unwrap() == content);
        assert_eq!(server.sent(), content.len() + if ranges { 0 } else { 4_000 });
    }
}

#[test]
fn two_at_once_download_once() {
    let (repository, cache) = (model(), Folder::new("both"));
    let content = repository.files["m-Q8_0.gguf"].clone();
    let server = Server::start(move |seen| Reply { delay: Duration::from_millis(20), ..repository.answer(seen) });
    let both = Barrier::new(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let hub = Hub::new(server.settings(&cache)).unwrap();
                let plan = hub.plan(&request(":Q8_0")).unwrap();
                both.wait();
                assert!(std::fs::read(hub.fetch(&plan, &mut |_| ()).unwrap()).unwrap() == content);
            });
        }
    });
    assert_eq!(server.sent(), content.len());
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let (repository, cache) = (model(), Folder::new("token"));
    let files = repository.clone();
    // Another host of the same machine, as a content network is.
    let store = Server::start(move |seen| files.answer(seen));
    let elsewhere = store.address.replace("127.0.0.1", "localhost");
    let hub_server = Server::start(move |seen| match is_file(seen) {
        true => Reply::status(302).header("location", format!("{elsewhere}{}", seen.path)),
        false => repository.answer(seen),
    });
    let mut settings = hub_server.settings(&cache);
    settings.token = Some("hf_secret".into());
    pull(&Hub::new(settings).unwrap(), "").unwrap();
    let tokens = |server: &Server| {
        let seen = server.seen.lock().unwrap();
        (seen.len(), seen.iter().filter(|seen| seen.headers.contains_key("authorization")).count())
    };
    let ((asked, with), (stored, leaked)) = (tokens(&hub_server), tokens(&store));
    assert!(asked > 10 && with == asked, "{with} of {asked}");
    assert!(stored > 10 && leaked == 0, "{leaked} of {stored}");
    assert!(store.seen.lock().unwrap().iter().all(|seen| seen.headers.contains_key("range")));
}

#[test]
fn connections_are_encrypted_and_stay_so() {
    let (repository, cache) = (model(), Folder::new("tls"));
    let plain = Server::start({
        let repository = repository.clone();
        move |seen| repository.answer(seen)
    });
    let lead_away = Arc::new(AtomicBool::new(false));
    let (away, to) = (lead_away.clone(), plain.address.clone());
    let server = Server::start_tls(move |seen| match is_file(seen) && away.load(Ordering::SeqCst) {
        true => Reply::status(302).header("location", format!("{to}{}", seen.path)),
        false => repository.answer(seen),
    });
    let mut settings = server.settings(&cache);
    settings.attempts = 1;
    // Nobody vouches for the certificate.
    let error = pull(&Hub::new(settings.clone()).unwrap(), "").unwrap_err().to_string();
    assert!(error.contains("not secure") && error.contains("SSL_CERT_FILE"), "{error}");
    settings.certificates = Some(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls/ca.pem").into());
    let hub = Hub::new(settings.clone()).unwrap();
    pull(&hub, "").unwrap();
    lead_away.store(true, Ordering::SeqCst);
    let error = pull(&hub, ":Q8_0").unwrap_err().to_string();
    assert!(error.contains("not encrypted"), "{error}");
    assert_eq!(plain.sent(), 0);
    settings.certificates = Some(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").into());
    assert!(matches!(Hub::new(settings), Err(HubError::BadSetting { name: "SSL_CERT_FILE", .. })));
}

#[test]
fn offline_is_offline() {
    let cache = Folder::new("offline");
    let server = Server::start(|_| Reply::status(500));
    let mut settings = server.settings(&cache);
    settings.offline = true;
    assert!(matches!(pull(&Hub::new(settings).unwrap(), ""), Err(HubError::Offline { .. })));
    assert!(server.seen.lock().unwrap().is_empty());
}
