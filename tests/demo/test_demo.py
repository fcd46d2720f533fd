"""docs/demo.md in a real browser, from the built site: needs chromium-headless-shell, chromium-driver and npm."""

import contextlib
import functools
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.select import Select  # noqa: E402

from aaren_rl.envs import make_env  # noqa: E402
from aaren_rl.runtime import load_policy  # noqa: E402

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "docs" / "demo"
BROWSER, DRIVER = (shutil.which(name) for name in ("chromium-headless-shell", "chromedriver"))
if BROWSER is None or DRIVER is None:
    pytest.skip("no browser: install chromium-headless-shell and chromium-driver", allow_module_level=True)

ENVS = {"hopper": "Hopper-v4", "halfcheetah": "HalfCheetah-v4", "walker2d": "Walker2d-v4"}
START = 60  # seconds until the robot runs


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True)
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/demo/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,1400"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = Service(DRIVER, popen_kw={"start_new_session": True})
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_script_timeout(300)
    group = service.process.pid
    yield driver
    driver.quit()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)  # the browser's processes outlive its driver where that is slow


@pytest.fixture
def page(site, browser) -> Any:
    browser.get(site)
    return browser


def part(page: Any, name: str) -> Any:
    return page.find_element("css selector", f'[data-part="{name}"]')


def until(seconds: float, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


def steps(page: Any) -> int:
    return int(page.find_element("id", "demo").get_attribute("data-steps") or 0)


def run(page: Any, body: str, *arguments: object) -> Any:
    """What an asynchronous function of the page's own module gives."""
    script = f"""
        const [given, done] = [Array.from(arguments).slice(0, -1), arguments[arguments.length - 1]];
        (async (...given) => {{ const {{ Robot, Policy, Episode }} = await import("./demo.mjs"); {body} }})(...given)
            .then(done, (error) => done({{ failed: String(error.stack) }}));
    """
    found = page.execute_async_script(script, *arguments)
    assert not (isinstance(found, dict) and "failed" in found), found
    return found


def test_it_runs_from_one_origin_without_an_error(page, site):
    until(START, lambda: page.find_element("id", "demo").get_attribute("data-ready") == "true")
    part(page, "start").click()
    until(START, lambda: steps(page) > 100)
    assert not [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
    sent = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    urls = [entry["params"]["request"]["url"] for entry in sent if entry["method"] == "Network.requestWillBeSent"]
    origin = site.removesuffix("demo/")
    assert any(url.endswith("hopper.onnx") for url in urls)
    assert not [url for url in urls if not url.startswith((origin, "data:", "blob:"))]


def test_slider_push_and_pause(page):
    part(page, "start").click()
    until(START, lambda: steps(page) > 20)
    ActionChains(page).click(part(page, "target")).perform()  # in the middle of 900 to 3,200
    assert part(page, "asked").text == "2,050"
    part(page, "target").send_keys(Keys.LEFT)
    assert part(page, "asked").text == "2,000"
    part(page, "restart").click()
    until(START, lambda: 0 < steps(page) < 100)
    part(page, "pause").click()
    time.sleep(0.3)
    stopped = steps(page)
    time.sleep(0.5)
    assert steps(page) == stopped
    achieved, left = (int(part(page, name).text.replace(",", "")) for name in ("achieved", "left-over"))
    assert abs(achieved + left - 2000) <= 1
    part(page, "pause").click()
    until(START, lambda: steps(page) > stopped)
    for _ in range(8):  # pushed again and again to the left, it falls
        part(page, "left").click()
        time.sleep(0.1)
    until(START, lambda: "fell" in part(page, "said").text)
    fell = int(part(page, "said").text.rpartition(" ")[2].strip(".").replace(",", ""))
    assert fell < 250  # without a push it hops on beyond that


def test_the_panel_shows_the_state(page):
    """Every head has a row with a color in it."""
    Select(part(page, "robot")).select_by_value("halfcheetah")
    part(page, "start").click()
    until(START, lambda: steps(page) > 20)
    part(page, "pause").click()
    script = """
        const board = document.querySelector('[data-part="memory"]'), pen = board.getContext("2d");
        const [tall, wide] = [12, 200];
        return Array.from({length: tall}, (_, r) => {
            const y = Math.round((r + 0.4) * board.height / tall), x = Math.round(0.4 * board.width);
            return pen.getImageData(x, y, wide, 1).data.filter((_, i) => i % 4 === 3).some((alpha) => alpha > 60);
        });
    """
    assert page.execute_script(script) == [True] * 12 and part(page, "speed").text.endswith(" m/s")


def test_keys_are_the_demos_and_not_the_sites(page, site):
    part(page, "start").click()
    until(START, lambda: steps(page) > 5)
    for focus in (None, "#demo", '[data-part="left"]'):  # None: where the start leaves it
        if focus is not None:
            page.execute_script("document.querySelector(arguments[0]).focus()", focus)
        for key, name in (("p", "pause"), ("s", "slow")):
            before = part(page, name).get_attribute("aria-pressed")
            ActionChains(page).send_keys(key).perform()
            time.sleep(0.5)
            assert page.current_url == site and part(page, name).get_attribute("aria-pressed") != before
            assert not page.execute_script("return document.querySelector('#__search').checked")


def test_a_robot_that_does_not_load_leaves_a_way_back(page, site):
    part(page, "start").click()
    until(START, lambda: steps(page) > 5)
    page.execute_cdp_cmd("Network.enable", {})
    page.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*walker2d.json"]})
    Select(part(page, "robot")).select_by_value("walker2d")
    until(START, lambda: part(page, "said").text.startswith("The demo stopped:"))
    assert part(page, "start").is_enabled() and not part(page, "pause").is_displayed()
    page.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    part(page, "start").click()
    until(START, lambda: part(page, "pause").is_displayed() and steps(page) > 5)


@pytest.mark.parametrize("robot", ENVS)
def test_the_policys_actions_are_those_of_the_runtime(page, robot):
    policy, rng = load_policy(DEMO / f"{robot}.onnx"), np.random.default_rng(0)
    size = json.loads((DEMO / f"{robot}.json").read_text())["observation"]
    observations = rng.normal(0, 1, (50, size)).astype(np.float32)
    rewards = rng.normal(2, 1, 50)
    expected, state = [], policy.initial_state(1, 2000.0)
    for observation, reward in zip(observations, rewards, strict=True):
        action, state = policy.act(observation[None], np.array([reward]), state)
        expected.append(action[0])
    body = """
        const [robot, observations, rewards] = given, policy = await Policy.load(robot), actions = [];
        policy.begin(2000);
        for (let i = 0; i < rewards.length; i++)
            actions.push(Array.from(await policy.act(Float32Array.from(observations[i]), rewards[i])));
        return actions;
    """
    found = run(page, body, robot, observations.tolist(), rewards.tolist())
    assert np.abs(np.array(found) - expected).max() <= 1e-5


@pytest.mark.parametrize("robot", ENVS)
def test_the_simulation_is_that_of_python(page, robot):
    env = make_env(ENVS[robot]).unwrapped
    env.reset(seed=0)
    start = env.data.qpos.copy(), env.data.qvel.copy()
    actions = np.random.default_rng(0).uniform(-0.3, 0.3, (200, env.action_space.shape[0]))
    expected, rewards = [], []
    for action in actions:
        rewards.append(env.step(action)[1])
        expected.append(env.data.qpos.copy())
    body = """
        const [name, qpos, qvel, actions] = given, robot = await Robot.load(name), places = [], rewards = [];
        robot.reset(qpos, qvel);
        for (const action of actions) {
            rewards.push(robot.step(action).reward);
            places.push(Array.from(robot.data.qpos));
        }
        return [places, rewards];
    """
    places, found = run(page, body, robot, *(part.tolist() for part in start), actions.tolist())
    assert np.abs(np.array(places) - expected).max() <= 1e-9
    assert np.allclose(found, rewards, atol=1e-6)
