// SPDX-License-Identifier: Apache-2.0
//
// Kernel CONNECTION_FILE: the kernel of jjava, with two differences. An interrupt ends the cell also if it comes between two statements, and stops code
// that does not look for interrupts (up to JDK 19; later ones cannot). A kernel that a template holds seeds its random generators again, before the first cell
// that runs in another machine. java.lock pins the version whose private members are named here.

import java.io.DataInputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.concurrent.AbstractExecutorService;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.logging.Level;
import org.dflib.jjava.JJava;
import org.dflib.jjava.JavaKernel;
import org.dflib.jjava.execution.CodeEvaluator;
import org.dflib.jjava.execution.JJavaExecutionControl;
import org.dflib.jjava.execution.JJavaExecutionControlProvider;
import org.dflib.jjava.jupyter.channels.JupyterConnection;
import org.dflib.jjava.jupyter.channels.JupyterSocket;
import org.dflib.jjava.jupyter.kernel.KernelConnectionProperties;
import org.dflib.jjava.jupyter.kernel.display.DisplayData;

public final class Kernel extends JavaKernel {
	/** What `warm` sends: the compiler is loaded, and it is not counted as a cell. */
	private static final String PREPARE = "// code-interpreter: prepare";
	private static final Path MACHINE_ID = Path.of(System.getenv().getOrDefault("CODE_INTERPRETER_MACHINE_ID", "/etc/machine-id"));
	private static final int GRACE_MS = 500; // from an interrupt to the stop of a thread that did not hear of it
	private static final int AGAIN_MS = 1000; // from one stop to the next
	private static final int STOPS = 10; // of code that runs on after each of them
	private static final int AWAIT_MS = 2000; // how long an interrupted cell waits for the end of its threads

	private String prepared; // the machine in which it was prepared, until it runs in another one
	private volatile long cell; // the number of the cell that runs, or 0
	private long cells;
	private final Statements statements = new Statements();
	private final Object output; // of all cells; its lock is held while a message is sent

	private Kernel(String version, JupyterConnection connection) throws ReflectiveOperationException {
		super(version);
		output = connection.getIOPub();
		var evaluator = member(JavaKernel.class, "evaluator").get(this);
		var controls = (JJavaExecutionControlProvider) member(CodeEvaluator.class, "executionControlProvider").get(evaluator);
		var control = controls.getRegisteredControlByID((String) member(CodeEvaluator.class, "executionControlID").get(evaluator));
		member(JJavaExecutionControl.class, "executor").set(control, statements);
	}

	public static void main(String[] args) throws Exception {
		JupyterSocket.JUPYTER_LOGGER.setLevel(Level.WARNING);
		var connection = new JupyterConnection(KernelConnectionProperties.parse(Files.readString(Path.of(args[0]))));
		var kernel = new Kernel("1", connection);
		// jjava's own helpers look for it there
		member(JJava.class, "kernel").set(null, kernel);
		kernel.becomeHandlerForConnection(connection);
		connection.connect();
		connection.waitUntilClose();
	}

	private static Field member(Class<?> in, String name) throws ReflectiveOperationException {
		Field f = in.getDeclaredField(name);
		f.setAccessible(true);
		return f;
	}

	// ---- cells

	@Override
	public DisplayData eval(String code) throws Exception {
		if (code.equals(PREPARE))
			return prepare();
		boolean within = cell != 0; // %load in a cell evaluates a file
		if (!within)
			cell = ++cells; // first of all: an interrupt is this cell's from now on
		try {
			seedForThisMachine();
			return super.eval(code);
		} finally {
			try {
				if (!within && statements != null) // jjava's constructor runs code as well
					statements.awaitInterrupted();
			} finally {
				if (!within)
					cell = 0;
			}
		}
	}

	private DisplayData prepare() throws Exception {
		executionCount.decrementAndGet();
		getRenderer().render(String.valueOf(evalRaw("{ System.nanoTime(); }")));
		prepared = machine();
		return null;
	}

	// ---- interrupts

	@Override
	public void interrupt() {
		statements.interrupt();
	}

	/**
	 * Runs the statements of cells, in place of jjava's executor. The lock orders the begin of a statement and an interrupt: a statement that has begun is
	 * cancelled, one that has not begun does not run. So it does not matter whether an interrupt finds a statement, or the moment between two.
	 */
	private final class Statements extends AbstractExecutorService {
		private Threads threads = new Threads();
		private long interrupted; // the last cell that was interrupted
		private final Set<Thread> ending = ConcurrentHashMap.newKeySet();
		private boolean closed;

		@Override
		public synchronized void execute(Runnable statement) {
			if (closed)
				throw new RejectedExecutionException("the kernel ends");
			var task = (FutureTask<?>) statement; // submit() makes nothing else
			if (cell != 0 && cell == interrupted)
				task.cancel(false);
			else
				threads.run(task);
		}

		synchronized void interrupt() {
			interrupted = cell;
			if (!threads.cancel())
				return;
			Threads old = threads;
			threads = new Threads();
			ending.addAll(old.all);
			old.end();
		}

		/** The code of a cell writes nothing into the next cell. A thread that waits in a system call does not hold up the cell for longer. */
		void awaitInterrupted() throws InterruptedException {
			synchronized (this) { // after an interrupt that has cancelled a statement, and has not yet said which threads end
				if (ending.isEmpty())
					return;
			}
			long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(AWAIT_MS);
			for (Thread thread : ending) {
				TimeUnit.NANOSECONDS.timedJoin(thread, end - System.nanoTime());
				ending.remove(thread);
			}
			// a thread that was stopped may have left text
			getIO().out.flush();
			getIO().err.flush();
		}

		@Override
		public synchronized List<Runnable> shutdownNow() {
			closed = true;
			threads.cancel();
			return List.of();
		}

		@Override
		public synchronized void shutdown() {
			closed = true;
		}

		@Override
		public synchronized boolean isShutdown() {
			return closed;
		}

		@Override
		public boolean isTerminated() {
			return false;
		}

		@Override
		public boolean awaitTermination(long timeout, TimeUnit unit) {
			return false;
		}
	}

	/** Threads that run statements until an interrupt. No later statement runs in them: they can be stopped at any moment. */
	private final class Threads {
		private final Set<Thread> all = ConcurrentHashMap.newKeySet();
		private final List<Future<?>> running = new ArrayList<>();
		private final ExecutorService pool = Executors.newCachedThreadPool(this::create);

		private Thread create(Runnable work) {
			all.removeIf(thread -> thread.getState() == Thread.State.TERMINATED);
			var thread = new Thread(work, "statements");
			all.add(thread);
			return thread;
		}

		void run(FutureTask<?> statement) {
			running.removeIf(Future::isDone);
			running.add(statement);
			pool.execute(statement);
		}

		/** Was there a statement that ran? Its cell ends with that. */
		boolean cancel() {
			boolean any = false;
			for (Future<?> statement : running)
				any |= statement.cancel(true);
			return any;
		}

		void end() {
			pool.shutdown();
			for (Thread thread : all) {
				var end = new Thread(() -> stop(thread), "interrupt");
				end.setDaemon(true);
				end.start();
			}
		}
	}

	/**
	 * The cell has ended for its client: its code must end too. Code that catches what stops it is stopped again. If it still runs after that, the kernel ends,
	 * and with it the state of the context. A thread that only waits in a system call is stopped when the call returns.
	 */
	@SuppressWarnings({"deprecation", "removal"})
	private void stop(Thread thread) {
		try {
			thread.join(GRACE_MS);
			long before = 0;
			for (int ran = 0; thread.isAlive() && ran < STOPS;) {
				// the thread must not end in the middle of a message: the next one could not be read
				synchronized (output) {
					thread.stop();
				}
				thread.join(AGAIN_MS);
				long used = thread.isAlive() ? ManagementFactory.getThreadMXBean().getThreadCpuTime(thread.getId()) : 0;
				if (used > before)
					ran++;
				before = used;
			}
		} catch (UnsupportedOperationException e) {
			System.err.println("code-interpreter: code that was interrupted goes on: this JDK cannot stop a thread");
			return;
		} catch (InterruptedException e) {
			return; // nobody does
		}
		if (thread.isAlive()) {
			end("code-interpreter: code that was interrupted cannot be stopped. The kernel ends.");
		}
	}

	/** Ends the kernel. Neither a lock on System.err nor a full pipe holds that up. */
	private static void end(String words) {
		var said = new Thread(() -> {
			try {
				new FileOutputStream(FileDescriptor.err).write((words + "\n").getBytes());
			} catch (IOException e) {
				// it ends all the same
			}
		});
		said.setDaemon(true);
		said.start();
		try {
			said.join(1000);
		} catch (InterruptedException e) {
			// it ends all the same
		}
		Runtime.getRuntime().halt(70);
	}

	// ---- random numbers

	private static String machine() throws IOException {
		return Files.readString(MACHINE_ID).strip();
	}

	/** No cell may run with numbers that another sandbox draws as well. */
	private void seedForThisMachine() {
		if (prepared == null)
			return;
		try {
			if (prepared.equals(machine()))
				return;
			reseed();
			prepared = null;
		} catch (Throwable e) {
			end("code-interpreter: cannot seed the random generators again: " + e);
		}
	}

	/** All that the JDK keeps between two draws. SecureRandom reads the kernel's generator again, because the clock has moved. */
	private static void reseed() throws IOException, ReflectiveOperationException {
		try (var kernel = new DataInputStream(Files.newInputStream(Path.of("/dev/urandom")))) {
			((AtomicLong) member(Random.class, "seedUniquifier").get(null)).set(kernel.readLong());
			((AtomicLong) member(SplittableRandom.class, "defaultGen").get(null)).set(kernel.readLong());
			((AtomicLong) member(ThreadLocalRandom.class, "seeder").get(null)).set(kernel.readLong());
			Field seed = member(Thread.class, "threadLocalRandomSeed");
			for (Thread thread : Thread.getAllStackTraces().keySet())
				seed.setLong(thread, kernel.readLong());
			for (Class<?> math : new Class<?>[] {Math.class, StrictMath.class}) {
				Class<?> holder = Class.forName(math.getName() + "$RandomNumberGeneratorHolder");
				((Random) member(holder, "randomNumberGenerator").get(null)).setSeed(kernel.readLong());
			}
			if (member(Collections.class, "r").get(null) instanceof Random shuffles)
				shuffles.setSeed(kernel.readLong());
		}
	}
}
