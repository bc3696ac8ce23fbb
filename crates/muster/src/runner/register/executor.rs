//! The executor of an entry: which tables it keeps, and what it has to be told.

use muster_config::EXECUTORS;
use toml_edit::{Array, Item, Table, Value};

use super::ask::{AskError, Asker, Question};

/// Tables that belong to executors, and to which.
const TABLES: [(&str, &[&str]); 7] = [
    ("docker", &["docker", "docker-windows", "docker+machine", "docker-autoscaler"]),
    ("machine", &["docker+machine"]),
    ("kubernetes", &["kubernetes"]),
    ("ssh", &["ssh", "parallels", "virtualbox"]),
    ("parallels", &["parallels"]),
    ("virtualbox", &["virtualbox"]),
    ("custom", &["custom"]),
];

/// Asks for the executor until it is one.
pub(super) async fn ask(asker: &mut Asker, default: &str) -> Result<String, super::RegisterError> {
    let names: Vec<&str> = EXECUTORS.iter().map(|(name, _)| *name).collect();
    let text = format!("Enter an executor: {}:", names.join(", "));
    loop {
        let question = Question { flag: "executor", text: &text, default, optional: false };
        let name = asker.ask(question).await?;
        if names.contains(&name.as_str()) {
            return Ok(name);
        }
        if !asker.is_interactive() {
            return Err(super::RegisterError::Executor { name, names: names.join(", ") });
        }
        tracing::error!("Invalid executor specified");
    }
}

/// Keeps the tables of the executor, and asks for what it cannot do without.
pub(super) async fn complete(asker: &mut Asker, entry: &mut Table, executor: &str) -> Result<(), AskError> {
    let mine: Vec<&str> = TABLES.iter().filter(|(_, of)| of.contains(&executor)).map(|(name, _)| *name).collect();
    for (name, _) in TABLES {
        if !mine.contains(&name) {
            entry.remove(name);
        }
    }
    for name in &mine {
        let table = entry.entry(name).or_insert_with(|| Item::Table(Table::new()));
        let Some(table) = table.as_table_mut() else { continue };
        match *name {
            "docker" => docker(asker, table, executor == "docker-windows").await?,
            "ssh" => ssh(asker, table, executor).await?,
            "parallels" => {
                ask_into(
                    asker,
                    table,
                    "base_name",
                    "parallels-base-name",
                    "Enter the Parallels VM (for example, my-vm):",
                    false,
                )
                .await?;
            }
            "virtualbox" => {
                ask_into(
                    asker,
                    table,
                    "base_name",
                    "virtualbox-base-name",
                    "Enter the VirtualBox VM (for example, my-vm):",
                    false,
                )
                .await?;
            }
            _ => {}
        }
    }
    if executor == "docker-windows" && entry.get("shell").is_none() {
        entry.insert("shell", toml_edit::value("pwsh"));
    }
    Ok(())
}

async fn docker(asker: &mut Asker, table: &mut Table, windows: bool) -> Result<(), AskError> {
    let example = if windows { "mcr.microsoft.com/windows/servercore:1809" } else { "ruby:3.3" };
    let text = format!("Enter the default Docker image (for example, {example}):");
    ask_into(asker, table, "image", "docker-image", &text, false).await?;
    let cache = if windows { "c:\\cache" } else { "/cache" };
    let disabled = table.get("disable_cache").and_then(Item::as_bool).unwrap_or(false);
    let volumes = table.entry("volumes").or_insert_with(|| Item::Value(Value::from(Array::new())));
    let Some(volumes) = volumes.as_array_mut() else { return Ok(()) };
    let there = volumes
        .iter()
        .filter_map(Value::as_str)
        .any(|volume| if windows { volume.contains(cache) } else { volume.rsplit(':').next() == Some(cache) });
    if !there && (windows || !disabled) {
        volumes.push(cache);
    }
    if volumes.is_empty() {
        table.remove("volumes");
    }
    Ok(())
}

async fn ssh(asker: &mut Asker, table: &mut Table, executor: &str) -> Result<(), AskError> {
    if executor != "virtualbox" {
        ask_into(asker, table, "host", "ssh-host", "Enter the SSH server address (for example, my.server.com):", false)
            .await?;
        ask_into(asker, table, "port", "ssh-port", "Enter the SSH server port (for example, 22):", true).await?;
    }
    if executor != "parallels" {
        ask_into(asker, table, "user", "ssh-user", "Enter the SSH user (for example, root):", false).await?;
        let text = "Enter the SSH password (for example, docker.io):";
        ask_into(asker, table, "password", "ssh-password", text, true).await?;
        let text = "Enter the path to the SSH identity file (for example, /home/user/.ssh/id_rsa):";
        ask_into(asker, table, "identity_file", "ssh-identity-file", text, true).await?;
    }
    Ok(())
}

async fn ask_into(
    asker: &mut Asker,
    table: &mut Table,
    key: &str,
    flag: &'static str,
    text: &str,
    optional: bool,
) -> Result<(), AskError> {
    let default = table.get(key).and_then(Item::as_str).unwrap_or_default().to_owned();
    let answer = asker.ask(Question { flag, text, default: &default, optional }).await?;
    if !answer.is_empty() {
        table.insert(key, toml_edit::value(answer));
    }
    Ok(())
}
