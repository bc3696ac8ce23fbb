//! Prompts for the executor of an entry and its settings.

use muster_config::EXECUTORS;
use toml_edit::{Array, Item, Table, Value};

use super::prompt::{Prompt, PromptError, Prompter};

/// Tables of executors, with the executors that use each table.
const TABLES: [(&str, &[&str]); 7] = [
    ("docker", &["docker", "docker-windows", "docker+machine", "docker-autoscaler"]),
    ("machine", &["docker+machine"]),
    ("kubernetes", &["kubernetes"]),
    ("ssh", &["ssh", "parallels", "virtualbox"]),
    ("parallels", &["parallels"]),
    ("virtualbox", &["virtualbox"]),
    ("custom", &["custom"]),
];

pub(super) async fn prompt_executor(prompter: &mut Prompter, default: &str) -> Result<String, super::RegisterError> {
    let names: Vec<&str> = EXECUTORS.iter().map(|(name, _)| *name).collect();
    let text = format!("Enter an executor: {}:", names.join(", "));
    loop {
        let prompt = Prompt { flag: "executor", text: &text, default, optional: false };
        let name = prompter.prompt(prompt).await?;
        if names.contains(&name.as_str()) {
            return Ok(name);
        }
        if !prompter.is_interactive() {
            return Err(super::RegisterError::Executor { name, names: names.join(", ") });
        }
        tracing::error!("Invalid executor specified");
    }
}

/// Removes the tables of other executors, and prompts for the settings of `executor`.
pub(super) async fn complete(prompter: &mut Prompter, entry: &mut Table, executor: &str) -> Result<(), PromptError> {
    let own_tables: Vec<&str> =
        TABLES.iter().filter(|(_, executors)| executors.contains(&executor)).map(|(name, _)| *name).collect();
    for (name, _) in TABLES {
        if !own_tables.contains(&name) {
            entry.remove(name);
        }
    }
    for name in &own_tables {
        let table = entry.entry(name).or_insert_with(|| Item::Table(Table::new()));
        let Some(table) = table.as_table_mut() else { continue };
        match *name {
            "docker" => prompt_docker(prompter, table, executor == "docker-windows").await?,
            "ssh" => prompt_ssh(prompter, table, executor).await?,
            "parallels" => {
                prompt_into(
                    prompter,
                    table,
                    "base_name",
                    "parallels-base-name",
                    "Enter the Parallels VM (for example, my-vm):",
                    false,
                )
                .await?;
            }
            "virtualbox" => {
                prompt_into(
                    prompter,
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

async fn prompt_docker(prompter: &mut Prompter, table: &mut Table, windows: bool) -> Result<(), PromptError> {
    let example = if windows { "mcr.microsoft.com/windows/servercore:1809" } else { "ruby:3.3" };
    let text = format!("Enter the default Docker image (for example, {example}):");
    prompt_into(prompter, table, "image", "docker-image", &text, false).await?;
    let cache = if windows { "c:\\cache" } else { "/cache" };
    let disabled = table.get("disable_cache").and_then(Item::as_bool).unwrap_or(false);
    let volumes = table.entry("volumes").or_insert_with(|| Item::Value(Value::from(Array::new())));
    let Some(volumes) = volumes.as_array_mut() else { return Ok(()) };
    let has_cache = volumes
        .iter()
        .filter_map(Value::as_str)
        .any(|volume| if windows { volume.contains(cache) } else { volume.rsplit(':').next() == Some(cache) });
    if !has_cache && (windows || !disabled) {
        volumes.push(cache);
    }
    if volumes.is_empty() {
        table.remove("volumes");
    }
    Ok(())
}

async fn prompt_ssh(prompter: &mut Prompter, table: &mut Table, executor: &str) -> Result<(), PromptError> {
    if executor != "virtualbox" {
        prompt_into(
            prompter,
            table,
            "host",
            "ssh-host",
            "Enter the SSH server address (for example, my.server.com):",
            false,
        )
        .await?;
        prompt_into(prompter, table, "port", "ssh-port", "Enter the SSH server port (for example, 22):", true).await?;
    }
    if executor != "parallels" {
        prompt_into(prompter, table, "user", "ssh-user", "Enter the SSH user (for example, root):", false).await?;
        let text = "Enter the SSH password (for example, docker.io):";
        prompt_into(prompter, table, "password", "ssh-password", text, true).await?;
        let text = "Enter the path to the SSH identity file (for example, /home/user/.ssh/id_rsa):";
        prompt_into(prompter, table, "identity_file", "ssh-identity-file", text, true).await?;
    }
    Ok(())
}

async fn prompt_into(
    prompter: &mut Prompter,
    table: &mut Table,
    key: &str,
    flag: &'static str,
    text: &str,
    optional: bool,
) -> Result<(), PromptError> {
    let default = table.get(key).and_then(Item::as_str).unwrap_or_default().to_owned();
    let answer = prompter.prompt(Prompt { flag, text, default: &default, optional }).await?;
    if !answer.is_empty() {
        table.insert(key, toml_edit::value(answer));
    }
    Ok(())
}
