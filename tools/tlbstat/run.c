// SPDX-License-Identifier: GPL-2.0
/* tlbstat: signals, commands that it runs, and arguments */
#include "tlbstat.h"
#include <fcntl.h>
#include <sys/resource.h>

sigset_t signals;

/* Wait until @deadline, of CLOCK_MONOTONIC; returns a signal that came before, or 0. */
int wait_until(double deadline, siginfo_t *info)
{
	double left, nap;
	bool tracing;
	int sig;

	do {
		/* What does not fit into the kernel's buffers is lost. */
		tracing = drain_trace();
		left = fmax(0, deadline - seconds_of(CLOCK_MONOTONIC));
		nap = tracing ? fmin(left, 0.1) : left;
		sig = sigtimedwait(&signals, info, &(struct timespec) {
			.tv_sec = nap,
			.tv_nsec = (nap - floor(nap)) * 1e9,
		});
	} while (sig < 0 && (errno == EINTR || nap < left));
	return sig < 0 ? 0 : sig;
}

pid_t start(char **command)
{
	pid_t pid = fork();

	if (pid < 0)
		err(FAILURE, "fork");
	if (pid)
		return pid;
	sigprocmask(SIG_UNBLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_DFL);
	execvp(*command, command);
	warn("%s", *command);
	_exit(127);
}

/*
 * Whether a command has a signal from the terminal, too: the kernel sends it to all of the
 * group in the foreground, but a hangup only to the leader of the session.
 */
static bool had(int sig, const siginfo_t *info, pid_t pid)
{
	return info->si_code == SI_KERNEL && getpgid(pid) == getpgrp() &&
	       !(sig == SIGHUP && getsid(0) == getpid());
}

/* Whether that signal ends it. A command decides itself what to make of one. */
bool ends(int sig, const siginfo_t *info, pid_t pid, int *status)
{
	if (sig == SIGCHLD)
		return pid && waitpid(pid, status, WNOHANG) == pid;
	if (sig > 0 && pid && !had(sig, info, pid))
		kill(pid, sig);
	return sig && !pid;
}

/* Of those that end it. Whoever ignores one, as nohup does, means it. */
void block_signals(void)
{
	static const int ending[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction old;
	int i;

	sigemptyset(&signals);
	for (i = 0; i < ARRAY_SIZE(ending); i++)
		if (!sigaction(ending[i], NULL, &old) && old.sa_handler != SIG_IGN)
			sigaddset(&signals, ending[i]);
	sigaddset(&signals, SIGCHLD);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	signal(SIGCHLD, SIG_DFL);
	signal(SIGPIPE, SIG_IGN);
}

double positive(const char *text, double least, const char *what)
{
	const double most = 1e6;
	char *end;
	double v = strtod(text, &end);

	if (!isdigit((unsigned char)*text) || *end || !(v >= least && v <= most))
		errx(USAGE, "%s is no %s (%.7g to %.7g)", text, what, least, most);
	return v;
}

/* What is behind --, or NULL. getopt_long() would not say where it begins. */
char **split_command(int *argc, char **argv)
{
	int i;

	for (i = 1; i < *argc; i++) {
		if (strcmp(argv[i], "--"))
			continue;
		if (i + 1 == *argc)
			errx(USAGE, "no command behind --");
		*argc = i;
		return argv + i + 1;
	}
	return NULL;
}

void check_root(void)
{
	if (strlen(root) > 200)
		errx(USAGE, "the name of that directory is too long");
}

static struct rlimit files;

/* Two for each CPU; what is started gets the limit that was. */
void more_files(void)
{
	struct rlimit more;

	if (getrlimit(RLIMIT_NOFILE, &files))
		return;
	more = files;
	more.rlim_cur = more.rlim_max;
	setrlimit(RLIMIT_NOFILE, &more);
}

/*
 * In a group of its own, so that all that it starts ends with it. That group is in the background
 * of the terminal, and would stop for ever if it read from there, or set its modes.
 */
pid_t start_group(char **words, int out)
{
	pid_t pid = fork();

	if (pid < 0)
		err(FAILURE, "fork");
	/* Both, as either may be first. */
	setpgid(pid, pid);
	if (pid)
		return pid;
	if (out >= 0)
		dup2(out, STDOUT_FILENO);
	if (isatty(STDIN_FILENO))
		dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
	signal(SIGTTOU, SIG_IGN);
	if (files.rlim_max)
		setrlimit(RLIMIT_NOFILE, &files);
	sigprocmask(SIG_UNBLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_DFL);
	execvp(*words, words);
	warn("%s", *words);
	_exit(127);
}

void end_group(pid_t pid)
{
	if (pid > 0) {
		kill(-pid, SIGTERM);
		kill(-pid, SIGCONT);
	}
}

/* Of a group that start_group() has made. Its status goes to @failed. */
bool command_ended(char **command, pid_t *pid, int *failed)
{
	int status;

	if (*pid <= 0 || waitpid(*pid, &status, WNOHANG) != *pid)
		return false;
	*pid = 0;
	*failed = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	if (status)
		warnx("%s: status %d", *command, *failed);
	return true;
}
