"""Longer answers: what things are, why they are so, and how to do them."""

from tools.train_demo.templates import phrases

DEFINITIONS = {
    "rain": "Rain is water that falls from the clouds in drops.",
    "snow": "Snow is frozen water that falls from the clouds in soft white flakes.",
    "wind": "Wind is air that moves. It can be soft like a breath or strong like a storm.",
    "the sun": "The sun is a star. It is very hot, and it gives us light and warmth.",
    "the moon": "The moon is a ball of rock that goes around the Earth once a month.",
    "a star": "A star is a huge ball of hot gas that shines in the night sky.",
    "a rainbow": "A rainbow is a bow of seven colours. You see it when the sun shines on rain.",
    "a river": "A river is water that flows from the hills down to the sea.",
    "a volcano": "A volcano is a mountain that can throw out hot melted rock.",
    "a desert": "A desert is a dry place where it almost never rains.",
    "an island": "An island is land with water all around it.",
    "a forest": "A forest is a large place where many trees grow close together.",
    "a seed": "A seed is a small part of a plant. With water and soil it grows into a new plant.",
    "a friend": "A friend is somebody who likes you, helps you and shares things with you.",
    "a book": "A book is made of pages with words and pictures. You read it.",
    "a computer": "A computer is a machine that follows instructions very fast.",
    "a robot": "A robot is a machine that can move and do work by itself.",
    "music": "Music is sound that is put together so that it is good to hear.",
    "love": "Love is a warm feeling for somebody you care about very much.",
    "time": "Time is what a clock measures. It goes on and on, and it never goes back.",
    "a bicycle": "A bicycle has two wheels and two pedals. You ride it with your legs.",
    "a chairlift": "A chairlift carries people up a mountain. It never stops: riders step on a"
    " moving chair and step off at the top.",
    "Chairlift": "Chairlift is a server for language models. New requests join a running batch at"
    " every step, just as riders step on a moving chair.",
    "continuous batching": "Continuous batching means that a new request may join the running batch"
    " at every step, and a finished one leaves at once. Nobody waits for the slowest.",
    "static batching": "Static batching waits until the batch is full, and runs it until the last"
    " request has finished.",
    "dynamic batching": "Dynamic batching waits a short time for more requests, and then runs what"
    " it has as one batch.",
    "a token": "A token is a small piece of text, such as a word or a part of a word. A language"
    " model reads and writes one token after another.",
    "a language model": "A language model is a program that reads text and guesses the next token,"
    " again and again.",
    "a batch": "A batch is a group of requests that are computed together.",
    "gRPC": "gRPC is a way for programs to call each other over a network. It can stream messages"
    " in both directions.",
    "paged attention": "Paged attention keeps the memory of a request in small blocks, so that no"
    " space is wasted.",
    "a cache": "A cache keeps a result, so that it need not be computed again.",
}

REASONS = {
    "the sky blue": "The sky is blue because the air scatters blue light more than red light. So"
    " blue light comes to our eyes from everywhere.",
    "snow white": "Snow is white because its tiny crystals send back light of every colour.",
    "the sea salty": "The sea is salty because rivers wash salt out of the rocks and carry it"
    " down to the sea.",
    "grass green": "Grass is green because of a green stuff in its leaves that catches sunlight.",
    "fire hot": "Fire is hot because burning wood sets its energy free as heat and light.",
    "ice slippery": "Ice is slippery because a thin film of water lies on top of it.",
    "winter cold": "Winter is cold because the sun stands low and the days are short.",
    "honey sweet": "Honey is sweet because bees make it from the sugar in flowers.",
}
HABITS = {
    "birds sing": "Birds sing to find a partner and to say: this is my tree.",
    "leaves fall in autumn": "Trees drop their leaves in autumn to save water in the cold months.",
    "cats purr": "Cats purr when they feel safe and warm, and also to calm themselves.",
    "bees make honey": "Bees make honey so that they have food in the winter.",
    "we sleep": "We sleep so that the body can rest and the mind can sort what it learned.",
    "boats float": "A boat floats because it pushes away water that is as heavy as itself.",
    "bears sleep in winter": "Bears sleep in winter because there is little food in the cold.",
    "stars twinkle": "Stars twinkle because their light passes through air that moves.",
    "we need water": "We need water because our body is mostly made of it.",
    "dogs wag their tails": "Dogs wag their tails when they are happy or excited.",
}

HOW_TO = {
    "make tea": (
        "Boil some water.",
        "Put a tea bag in a cup.",
        "Pour the hot water into the cup.",
        "Wait three minutes.",
        "Take out the tea bag and enjoy.",
    ),
    "make pancakes": (
        "Mix flour, milk and two eggs.",
        "Heat a little butter in a pan.",
        "Pour in some batter.",
        "Turn it when it is brown.",
        "Eat it with honey.",
    ),
    "plant a seed": (
        "Fill a pot with soil.",
        "Make a small hole.",
        "Put the seed in.",
        "Cover it with soil.",
        "Give it water and light.",
    ),
    "brush your teeth": (
        "Wet the brush.",
        "Put some paste on it.",
        "Brush up and down for two minutes.",
        "Rinse your mouth with water.",
    ),
    "build a snowman": (
        "Roll a big ball of snow.",
        "Put a smaller ball on top.",
        "Put the smallest ball on top of that.",
        "Use a carrot for the nose.",
        "Give it a hat and a scarf.",
    ),
    "make a sandwich": (
        "Take two slices of bread.",
        "Put butter on them.",
        "Add cheese and tomato.",
        "Put the slices together.",
        "Cut it in two.",
    ),
    "wash your hands": (
        "Wet your hands.",
        "Use some soap.",
        "Rub them for twenty seconds.",
        "Rinse them.",
        "Dry them with a towel.",
    ),
    "ride a bicycle": (
        "Put on a helmet.",
        "Sit on the saddle.",
        "Push off with one foot.",
        "Look ahead and pedal.",
        "Brake gently to stop.",
    ),
    "make a friend": (
        "Smile and say hello.",
        "Ask for the name.",
        "Listen well.",
        "Share something.",
        "Meet again.",
    ),
    "bake bread": (
        "Mix flour, water, salt and yeast.",
        "Knead the dough.",
        "Let it rest for an hour.",
        "Bake it until it is brown.",
        "Let it cool before you cut it.",
    ),
    "paint a picture": (
        "Take a sheet of paper.",
        "Choose your colours.",
        "Draw what you want to paint.",
        "Fill it with colour.",
        "Let it dry.",
    ),
    "fall asleep": (
        "Put away the screen.",
        "Make the room dark.",
        "Lie down.",
        "Breathe slowly.",
        "Think of something nice.",
    ),
    "ride a chairlift": (
        "Stand on the line.",
        "Wait for the chair.",
        "Sit down when it touches your legs.",
        "Close the bar.",
        "Step off at the top.",
    ),
}

JOKES = (
    "Why did the bicycle fall over? Because it was two-tired!",
    "What do you call a bear with no teeth? A gummy bear!",
    "Why did the chicken cross the road? To get to the other side!",
    "What is brown and sticky? A stick!",
    "Why can't you give a balloon to a snow queen? She will let it go!",
    "What do you call cheese that is not yours? Nacho cheese!",
    "Why did the cookie go to the doctor? It felt crumbly!",
    "What has four wheels and flies? A garbage truck!",
    "Why do bees have sticky hair? They use honeycombs!",
    "What do you call a sleeping dinosaur? A dino-snore!",
    "Why did the token leave the batch? It had come to its end!",
    "What goes up when the rain comes down? An umbrella!",
)

HARD_SUBJECTS = phrases(
    "quantum physics|the stock market|the history of Rome|general relativity|my tax return|"
    "the news of today|the weather tomorrow|machine learning|the French revolution|chemistry|"
    "politics|a Python function that sorts a list|a business plan|a legal contract|the theory of"
    " evolution|a love letter from Shakespeare|the meaning of life|blockchain|a web server in Rust|"
    "the human brain|black holes|medicine for a headache|the square root of 1764|prime numbers|"
    "an essay about democracy|a SQL query|electricity|philosophy|economics|the football results"
)
