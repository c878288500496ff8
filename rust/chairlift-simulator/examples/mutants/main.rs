//! Puts the bugs of other engines into a copy of the core, one at a time, and lets the simulator find them.
//!
//! `cargo run --example mutants [NAME ...]` prints the table. The core itself carries no trace of them: each is a change
//! of its text, and a test holds that every change still applies.
#![allow(clippy::print_stdout, reason = "a command")]

mod table;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Instant,
};

use table::{MUTANTS, Mutant};

/// What the simulator may spend on one bug, in steps; a hunt that long has failed.
const MAX_STEPS: &str = "6_000_000";

fn main() -> ExitCode {
    let names: Vec<_> = env::args().skip(1).collect();
    let chosen = MUTANTS
        .iter()
        .filter(|mutant| names.is_empty() || names.iter().any(|name| name == mutant.name));
    println!("| bug | seen in | what goes wrong | seed | steps | seconds | the simulator says |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let (mut planted, mut caught) = (0, 0);
    for mutant in chosen {
        planted += 1;
        match hunt(mutant) {
            Ok(Some(found)) => {
                caught += 1;
                println!(
                    "| {} | {} | {} | {found} |",
                    mutant.name, mutant.peer, mutant.what
                );
            }
            Ok(None) => println!(
                "| {} | {} | {} | | | | **not caught** |",
                mutant.name, mutant.peer, mutant.what
            ),
            Err(error) => println!(
                "| {} | {} | {} | | | | {error} |",
                mutant.name, mutant.peer, mutant.what
            ),
        }
    }
    println!("\n{caught} of {planted} caught");
    if caught == planted {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Builds the simulator over a core with this bug and runs it: seed, steps, seconds and sentence of the first failure.
fn hunt(mutant: &Mutant) -> io::Result<Option<String>> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let copy = workspace.join("target/mutants");
    fs::create_dir_all(&copy)?;
    for entry in ["Cargo.toml", "Cargo.lock", "rust"] {
        copy_changed(&workspace.join(entry), &copy.join(entry), mutant)?;
    }
    let build = cargo(&copy)
        .args(["build", "--release", "--quiet"])
        .args(PACKAGE)
        .output()?;
    if !build.status.success() {
        return Err(io::Error::other(
            String::from_utf8_lossy(&build.stderr).into_owned(),
        ));
    }
    let started = Instant::now();
    let mut run = cargo(&copy);
    run.args(["run", "--release", "--quiet"]).args(PACKAGE);
    let run = run.args(["--", "--brief", "--steps", MAX_STEPS]).output()?;
    let seconds = started.elapsed().as_secs_f64();
    let out = String::from_utf8_lossy(&run.stdout).into_owned();
    let failure = out.lines().find_map(|line| line.strip_prefix("failed: "));
    let parts = failure.and_then(|line| line.split_once(": "));
    Ok(parts.map(|(place, sentence)| format!("{place} | {seconds:.1} | {sentence}")))
}

const PACKAGE: [&str; 2] = ["--package", "chairlift-simulator"];

fn cargo(copy: &Path) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", copy.join("target"))
        .env("RUSTFLAGS", "--cap-lints=allow");
    cargo
}

/// Copies a file or folder, changed by the mutant; files that are right already keep their time, so that only what
/// changed is built.
fn copy_changed(from: &Path, to: &Path, mutant: &Mutant) -> io::Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            copy_changed(&from.join(&name), &to.join(&name), mutant)?;
        }
        return Ok(());
    }
    let mut content = fs::read(from)?;
    if from == mutant.path() {
        content = mutant
            .apply(&String::from_utf8_lossy(&content))
            .map_err(io::Error::other)?
            .into_bytes();
    }
    if fs::read(to).ok().as_ref() != Some(&content) {
        fs::write(to, content)?;
    }
    Ok(())
}

impl Mutant {
    fn path(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../rust/chairlift-core/src")
            .join(self.file)
    }

    /// The text with the bug in it.
    fn apply(&self, text: &str) -> Result<String, String> {
        let mut text = text.to_owned();
        for (old, new) in self.changes {
            let times = text.matches(old).count();
            if times != 1 {
                return Err(format!(
                    "{}: {} has {times} times {old:?}",
                    self.name, self.file
                ));
            }
            text = text.replacen(old, new, 1);
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_still_applies() {
        for mutant in MUTANTS {
            let text = fs::read_to_string(mutant.path()).expect("a file of the core");
            assert!(
                mutant.apply(&text).is_ok_and(|changed| changed != text),
                "{:?}",
                mutant.apply(&text).err()
            );
        }
    }
}
