//! Planning and downloading.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use crate::Hub;
use crate::cache::RepoCache;
use crate::checksum::Checksum;
use crate::choose::{Choice, choose, models};
use crate::client::Failure;
use crate::error::{HubError, Result, io};
use crate::listing::{Listing, RemoteFile};
use crate::partial::{Partial, Piece, kept_bytes};
use crate::request::{Repo, Request};

/// Time between reports of progress.
const PERIOD: Duration = Duration::from_millis(100);
/// Room that stays free on the disk.
const RESERVE: u64 = 64 << 20;

/// What a download will do.
#[derive(Debug)]
pub struct Plan {
    repo: Repo,
    commit: String,
    /// The model.
    pub choice: Choice,
    /// Its files.
    pub files: Vec<RemoteFile>,
    /// The repository's other models, with their sizes in bytes.
    pub others: Vec<(Choice, u64)>,
}

impl Plan {
    /// Bytes of the model.
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

/// How far a download is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// What is done.
    pub step: Step,
    /// Bytes done.
    pub done: u64,
    /// Bytes of all.
    pub total: u64,
}

/// The steps of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Another process downloads the same file; this one waits for it.
    Waiting,
    /// Bytes arrive.
    Downloading,
    /// Checksums are computed.
    Checking,
}

impl Hub {
    /// Asks the hub for the repository's files and chooses among them.
    ///
    /// # Errors
    /// When the hub cannot be reached, does not have the repository, or the repository has no such model.
    pub fn plan(&self, request: &Request) -> Result<Plan> {
        if self.settings().offline {
            return Err(HubError::Offline { repo: request.repo.to_string() });
        }
        let listing =
            self.retry(&self.settings().endpoint, &AtomicBool::new(false), || self.client.list(&request.repo))?;
        let Listing { commit, files, unverified } = listing;
        let repo = request.repo.clone();
        let paths = || files.iter().map(|file| file.path.as_str()).chain(unverified.iter().map(String::as_str));
        let choice =
            choose(paths(), &request.wanted).map_err(|reason| HubError::NoFile { repo: repo.to_string(), reason })?;
        if let Some(path) = choice.files.iter().find(|path| unverified.contains(path)) {
            let reason = format!("the list has no size and checksum of {path}");
            return Err(HubError::BadReply { url: self.settings().endpoint.clone(), reason });
        }
        let of = |choice: &Choice| -> Vec<RemoteFile> {
            let file = |path: &String| files.iter().find(|file| file.path == *path).cloned();
            choice.files.iter().filter_map(file).collect()
        };
        let others = models(paths()).into_iter().filter(|other| *other != choice);
        let others = others.map(|other| (of(&other).iter().map(|file| file.size).sum(), other));
        let others = others.map(|(size, other)| (other, size)).collect();
        Ok(Plan { repo, commit, files: of(&choice), choice, others })
    }

    /// Downloads what is missing of a plan's files and returns the model's path: the GGUF file, or the folder.
    ///
    /// # Errors
    /// When the disk has no room, the hub breaks off again and again, or a file is not what the hub lists.
    pub fn fetch(&self, plan: &Plan, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
        let cache = RepoCache::new(&self.settings().cache, &plan.repo);
        let total = plan.size();
        let missing =
            |file: &&RemoteFile| std::fs::metadata(cache.blob(&file.checksum)).map_or(true, |m| m.len() != file.size);
        let mut wanted: Vec<&RemoteFile> = plan.files.iter().filter(missing).collect();
        // Two paths may have one content.
        wanted.sort_by_key(|file| file.checksum.digits().to_string());
        wanted.dedup_by_key(|file| file.checksum.digits());
        // In one order everywhere, so that two processes cannot wait for each other.
        let waiting = || progress(Progress { step: Step::Waiting, done: 0, total });
        let locks = lock_all(&cache, &wanted, waiting)?;
        // Another process may have brought them meanwhile.
        wanted.retain(missing);
        // A file may come damaged out of an interrupted download: then once more from its beginning.
        let mut failed = self.download(plan, &cache, &wanted, progress)?;
        failed.retain(|(_, resumed, _)| *resumed);
        let again: Vec<&RemoteFile> = failed.iter().map(|(file, ..)| *file).collect();
        if let Some((file, _, got)) = self.download(plan, &cache, &again, progress)?.pop() {
            let listed = file.checksum.digits().to_string();
            return Err(HubError::Checksum { file: file.path.clone(), got, listed });
        }
        drop(locks);
        for file in &plan.files {
            cache.link(&plan.commit, &file.path, &file.checksum)?;
        }
        cache.set_main(&plan.commit)?;
        let snapshot = cache.snapshot(&plan.commit);
        Ok(if plan.choice.is_folder() { snapshot } else { crate::cache::join(&snapshot, &plan.choice.files[0]) })
    }

    /// Downloads files and makes those blobs whose checksums are right. Returns the others, deleted: whether an earlier
    /// download began each, and its checksum. A file that is wrong from its beginning is an error.
    fn download<'a>(
        &self,
        plan: &Plan,
        cache: &RepoCache,
        files: &[&'a RemoteFile],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<(&'a RemoteFile, bool, String)>> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let piece = self.settings().piece;
        let kept = |file: &RemoteFile| kept_bytes(&cache.blob(&file.checksum), file.size, piece);
        let needed: u64 = files.iter().map(|file| file.size - kept(file)).sum();
        std::fs::create_dir_all(&cache.root).map_err(io(&cache.root))?;
        let free = fs4::available_space(&cache.root).map_err(io(&cache.root))?;
        if needed + RESERVE > free {
            return Err(HubError::NoRoom { path: self.settings().cache.clone(), free, needed });
        }
        let open = |file: &&'a RemoteFile| {
            let partial = Partial::open(&cache.blob(&file.checksum), file.size, piece)?;
            Ok(Transfer { file, url: self.client.address(&plan.repo, &plan.commit, &file.path), partial })
        };
        let transfers = files.iter().map(open).collect::<Result<Vec<Transfer<'a>>>>()?;
        self.bring(&plan.repo, &transfers, plan.size(), progress)?;
        let mut failed = Vec::new();
        let (total, mut before) = (files.iter().map(|file| file.size).sum(), 0);
        for Transfer { file, partial, .. } in transfers {
            let mut checked = |done| progress(Progress { step: Step::Checking, done: before + done, total });
            let got = file.checksum.of_file(partial.path(), &mut checked)?;
            before += file.size;
            if got == file.checksum.digits() {
                partial.finish(&cache.blob(&file.checksum))?;
                continue;
            }
            let resumed = partial.resumed() > 0;
            partial.discard();
            if !resumed {
                let listed = file.checksum.digits().to_string();
                return Err(HubError::Checksum { file: file.path.clone(), got, listed });
            }
            failed.push((file, resumed, got));
        }
        Ok(failed)
    }

    /// Brings the missing pieces of all files, several at a time.
    fn bring(
        &self,
        repo: &Repo,
        transfers: &[Transfer<'_>],
        total: u64,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let pieces = transfers.iter().flat_map(|t| t.partial.missing().map(move |piece| (t, piece)));
        let queue: Mutex<VecDeque<(&Transfer<'_>, Piece)>> = Mutex::new(pieces.collect());
        let pieces = queue.lock().unwrap_or_else(PoisonError::into_inner).len();
        let missing: u64 = transfers.iter().map(|t| t.file.size - t.partial.resumed()).sum();
        let arrived = AtomicU64::new(total.saturating_sub(missing));
        let stop = AtomicBool::new(false);
        let (report, ended) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..pieces.min(self.settings().connections) {
                let (report, queue, arrived, stop) = (report.clone(), &queue, &arrived, &stop);
                scope.spawn(move || {
                    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let result = loop {
                        let Some((transfer, piece)) = next().filter(|_| !stop.load(Ordering::Relaxed)) else {
                            break Ok(());
                        };
                        if let Err(e) = self.bring_piece(repo, transfer, piece, arrived, stop) {
                            break Err(e);
                        }
                    };
                    let _ = report.send(result);
                });
            }
            drop(report);
            let mut first = Ok(());
            loop {
                let done = arrived.load(Ordering::Relaxed);
                progress(Progress { step: Step::Downloading, done, total });
                match ended.recv_timeout(PERIOD) {
                    Ok(Err(e)) if first.is_ok() => {
                        stop.store(true, Ordering::Relaxed);
                        first = Err(e);
                    }
                    Ok(_) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) => return first,
                }
            }
        })
    }

    /// Brings one piece. A connection that breaks off is followed by another from the byte reached.
    fn bring_piece(
        &self,
        repo: &Repo,
        transfer: &Transfer<'_>,
        piece: Piece,
        arrived: &AtomicU64,
        stop: &AtomicBool,
    ) -> Result<()> {
        let (mut at, size) = (piece.start, transfer.file.size);
        let mut out = transfer.partial.writer(at)?;
        let mut buffer = vec![0; 256 << 10];
        while at < piece.end {
            let start = at;
            self.retry(&transfer.url, stop, || {
                let reader = self.client.range(&transfer.url, repo, (at, piece.end, size))?;
                let Some(mut reader) = reader else {
                    return Err(Failure::Final(HubError::BadReply {
                        url: transfer.url.clone(),
                        reason: "the server does not send parts of files".into(),
                    }));
                };
                while at < piece.end && !stop.load(Ordering::Relaxed) {
                    let most = buffer.len().min(usize::try_from(piece.end - at).unwrap_or(usize::MAX));
                    let n = match reader.read(&mut buffer[..most]) {
                        // Bytes that came count as success: the next attempt begins after them.
                        Ok(0) | Err(_) if at > start => return Ok(()),
                        Ok(0) => return Err(Failure::Passing("the connection was closed early".into(), None)),
                        Ok(n) => n,
                        Err(e) => return Err(Failure::Passing(e.to_string(), None)),
                    };
                    out.write_all(&buffer[..n]).map_err(|e| Failure::Final(io(transfer.partial.path())(e)))?;
                    at += n as u64;
                    arrived.fetch_add(n as u64, Ordering::Relaxed);
                }
                Ok(())
            })?;
            if stop.load(Ordering::Relaxed) && at < piece.end {
                return Ok(());
            }
        }
        transfer.partial.complete(piece)
    }

    /// Tries until something succeeds, fails for good or has failed too often in a row.
    fn retry<T>(&self, url: &str, stop: &AtomicBool, mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T> {
        let settings = self.settings();
        let mut pause = settings.pause;
        for tried in 1.. {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(Failure::Final(e)) => return Err(e),
                Err(Failure::Passing(reason, _)) if tried >= settings.attempts || stop.load(Ordering::Relaxed) => {
                    let proxy = if self.client.proxied() { ", by the proxy that the environment names" } else { "" };
                    let reason = format!("{reason} ({tried} attempts{proxy})");
                    return Err(HubError::Network { url: url.into(), reason });
                }
                Err(Failure::Passing(_, wait)) => {
                    std::thread::sleep(wait.unwrap_or(pause));
                    pause *= 2;
                }
            }
        }
        unreachable!("the loop has no end")
    }
}

/// A file on its way.
struct Transfer<'a> {
    file: &'a RemoteFile,
    url: String,
    partial: Partial,
}

/// Takes the locks of these files' contents.
fn lock_all(cache: &RepoCache, files: &[&RemoteFile], mut waiting: impl FnMut()) -> Result<Vec<std::fs::File>> {
    let checksums: Vec<&Checksum> = files.iter().map(|file| &file.checksum).collect();
    checksums.into_iter().map(|checksum| cache.lock(checksum, &mut waiting)).collect()
}
