// SPDX-License-Identifier: Apache-2.0
//
// Kernel CONNECTION_FILE: the kernel of jjava, with two differences. An interrupt ends the cell also if it comes between two statements, and ends a loop that
// does not look for interrupts (JDK 17; later ones cannot). A kernel that a template holds seeds its random generators again, before the first cell that runs in
// another machine. java.lock pins the version whose private members are named here.

import java.io.DataInputStream;
import java.io.IOException;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.SplittableRandom;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicLong;
import java.util.logging.Level;
import org.dflib.jjava.JJava;
import org.dflib.jjava.JavaKernel;
import org.dflib.jjava.jupyter.channels.JupyterConnection;
import org.dflib.jjava.jupyter.channels.JupyterSocket;
import org.dflib.jjava.jupyter.kernel.KernelConnectionProperties;
import org.dflib.jjava.jupyter.kernel.display.DisplayData;

public final class Kernel extends JavaKernel {
	/** What `warm` sends: the compiler is loaded, and it is not counted as a cell. */
	private static final String PREPARE = "// code-interpreter: prepare";
	private static final Path MACHINE_ID = Path.of(System.getenv().getOrDefault("CODE_INTERPRETER_MACHINE_ID", "/etc/machine-id"));
	private static final int AGAIN_MS = 50;
	private static final int GRACE_MS = 500; // from an interrupt to the end of a thread that did not hear of it

	private String prepared; // the machine in which it was prepared, until it runs in another one
	private volatile long cell; // the number of the cell that runs, or 0
	private long cells;

	private Kernel(String version) {
		super(version);
	}

	public static void main(String[] args) throws Exception {
		JupyterSocket.JUPYTER_LOGGER.setLevel(Level.WARNING);
		var connection = new JupyterConnection(KernelConnectionProperties.parse(Files.readString(Path.of(args[0]))));
		var kernel = new Kernel("1");
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
		seedForThisMachine();
		cell = ++cells;
		try {
			return super.eval(code);
		} finally {
			cell = 0;
		}
	}

	private DisplayData prepare() throws Exception {
		executionCount.decrementAndGet();
		getRenderer().render(String.valueOf(evalRaw("{ System.nanoTime(); }")));
		prepared = machine();
		return null;
	}

	@Override
	public void interrupt() {
		long now = cell;
		Map<Thread, String> busy = statements();
		super.interrupt();
		if (now != 0)
			start(() -> interruptAgain(now));
		start(() -> stopLoops(busy));
	}

	private static void start(Runnable work) {
		var thread = new Thread(work, "interrupt");
		thread.setDaemon(true);
		thread.start();
	}

	/** jjava ends the statement that runs now. There may be none for a moment, or the next one begins. */
	private void interruptAgain(long interrupted) {
		try {
			for (Thread.sleep(AGAIN_MS); cell == interrupted; Thread.sleep(AGAIN_MS))
				super.interrupt();
		} catch (InterruptedException e) {
			return; // nobody does
		}
	}

	/** A thread for each statement that runs, with the class that JShell made of the statement. */
	private static Map<Thread, String> statements() {
		Map<Thread, String> found = new HashMap<>();
		Thread.getAllStackTraces().forEach((thread, stack) -> {
			for (StackTraceElement e : stack)
				if (e.getClassName().startsWith("REPL.") && e.getMethodName().equals("do_it$"))
					found.put(thread, e.getClassName());
		});
		return found;
	}

	/** The cell has ended for its client. A loop of it would take the CPU from all later ones. */
	@SuppressWarnings({"deprecation", "removal"})
	private static void stopLoops(Map<Thread, String> interrupted) {
		try {
			Thread.sleep(GRACE_MS);
		} catch (InterruptedException e) {
			return; // nobody does
		}
		statements().forEach((thread, statement) -> {
			if (!statement.equals(interrupted.get(thread)))
				return;
			try {
				thread.stop();
			} catch (UnsupportedOperationException e) {
				System.err.println("code-interpreter: a loop that was interrupted goes on: this JDK cannot stop a thread");
			}
		});
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
			System.err.println("code-interpreter: cannot seed the random generators again: " + e);
			Runtime.getRuntime().halt(70);
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
