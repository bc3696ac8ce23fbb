@echo off
rem An instance group as a batch file, for the plugin `script` on Windows. Its instances are files, as in the shell template.
rem Exit with 64 for a call that you do not implement. Output on stderr is logged.
setlocal enabledelayedexpansion
if not defined SETTING_DIRECTORY (
    echo plugin_config has no setting `directory`: settings = { directory = 'C:\instances' }>&2
    exit 1
)
set "root=%SETTING_DIRECTORY%"
set "call=%~1"
shift
if "%call%"=="init" goto init
if "%call%"=="update" goto update
if "%call%"=="increase" goto increase
if "%call%"=="decrease" goto decrease
if "%call%"=="connect-info" goto connect
exit 64

:init
if not exist "%root%\" mkdir "%root%"
echo id toy/windows
echo max_size 10
exit 0

rem List every instance with its state.
:update
pushd "%root%" || exit 1
for %%f in (*) do (
    set "state="
    set /p state=<"%%f"
    echo %%f !state!
    rem A real provider changes the state itself.
    if "!state!"=="creating" echo running>"%%f"
    if "!state!"=="deleting" del "%%f"
)
exit 0

rem Request instances, and print the number of accepted instances.
:increase
for /L %%n in (1,1,%~1) do echo creating>"%root%\instance-!random!!random!"
echo %~1
exit 0

rem Delete these instances, and print the accepted ones. A missing instance counts as deleted.
:decrease
if "%~1"=="" exit 0
if exist "%root%\%~1" echo deleting>"%root%\%~1"
echo %~1
shift
goto decrease

:connect
if not exist "%root%\%~1" (
    echo instance %~1 does not exist>&2
    exit 1
)
echo internal_addr 127.0.0.1
exit 0
