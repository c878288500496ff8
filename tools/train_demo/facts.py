"""A small table of the world: what the model may know, and how it is asked."""

COLOURS = {
    "the sky": "blue", "grass": "green", "snow": "white", "the sun": "yellow", "a lemon": "yellow",
    "a banana": "yellow", "coal": "black", "blood": "red", "a strawberry": "red", "milk": "white",
    "the sea": "blue", "a carrot": "orange", "an orange": "orange", "a frog": "green",
    "chocolate": "brown", "a flamingo": "pink", "an elephant": "grey", "a crow": "black",
    "a tomato": "red", "a cucumber": "green", "a pumpkin": "orange", "a fire engine": "red",
    "a polar bear": "white", "a plum": "purple", "sand": "yellow", "a leaf": "green",
    "the night sky": "black", "a cherry": "red", "gold": "yellow", "a swan": "white",
}  # fmt: skip

OPPOSITES = (
    "hot cold|big small|up down|day night|fast slow|old new|happy sad|light dark|open closed|"
    "full empty|wet dry|hard soft|high low|long short|loud quiet|early late|rich poor|strong weak|"
    "good bad|left right|black white|thick thin|clean dirty|near far|sweet sour|easy difficult|"
    "first last|young old|inside outside|always never|win lose|push pull|give take|love hate|"
    "true false|brave afraid|begin end|buy sell|laugh cry|remember forget"
)
OPPOSITE_PAIRS = tuple(tuple(pair.split()) for pair in OPPOSITES.split("|"))

# kind: (sound, number of legs, home, food, name of the young, what it can do, group)
ANIMAL_FACTS = {
    "cow": ("moo", 4, "on a farm", "grass", "calf", "give milk", "mammal"),
    "dog": ("woof", 4, "in a house with people", "meat", "puppy", "bark and run", "mammal"),
    "cat": ("meow", 4, "in a house with people", "mice and fish", "kitten", "climb", "mammal"),
    "duck": ("quack", 2, "near a pond", "plants and snails", "duckling", "swim and fly", "bird"),
    "sheep": ("baa", 4, "on a farm", "grass", "lamb", "give wool", "mammal"),
    "horse": ("neigh", 4, "on a farm", "hay and grass", "foal", "run fast", "mammal"),
    "pig": ("oink", 4, "on a farm", "almost everything", "piglet", "smell very well", "mammal"),
    "hen": ("cluck", 2, "on a farm", "seeds", "chick", "lay eggs", "bird"),
    "lion": ("roar", 4, "on the grassland", "meat", "cub", "hunt in a group", "mammal"),
    "frog": ("ribbit", 4, "near a pond", "flies", "tadpole", "jump far", "amphibian"),
    "bee": ("buzz", 6, "in a hive", "nectar", "larva", "make honey", "insect"),
    "owl": ("hoot", 2, "in the forest", "mice", "owlet", "fly without a sound", "bird"),
    "wolf": ("howl", 4, "in the forest", "meat", "pup", "run all night", "mammal"),
    "mouse": ("squeak", 4, "in a small hole", "seeds and cheese", "pup", "hide well", "mammal"),
    "snake": (
        "hiss",
        0,
        "in warm places",
        "small animals",
        "hatchling",
        "move without legs",
        "reptile",
    ),
    "fox": ("yelp", 4, "in a den", "mice and berries", "cub", "hear very well", "mammal"),
    "rabbit": ("squeak", 4, "in a burrow", "grass and carrots", "kit", "hop fast", "mammal"),
    "bear": ("growl", 4, "in the forest", "fish and berries", "cub", "sleep all winter", "mammal"),
    "elephant": (
        "trumpet",
        4,
        "on the grassland",
        "leaves and grass",
        "calf",
        "lift things with its trunk",
        "mammal",
    ),
    "penguin": ("honk", 2, "in the cold south", "fish", "chick", "swim but not fly", "bird"),
    "whale": ("sing", 0, "in the sea", "krill and fish", "calf", "dive deep", "mammal"),
    "spider": ("nothing", 8, "in a web", "flies", "spiderling", "spin silk", "arachnid"),
    "ant": (
        "nothing",
        6,
        "in a nest under the ground",
        "seeds",
        "larva",
        "carry heavy things",
        "insect",
    ),
    "giraffe": ("hum", 4, "on the grassland", "leaves", "calf", "reach high trees", "mammal"),
    "kangaroo": ("click", 4, "in Australia", "grass", "joey", "jump very far", "mammal"),
    "squirrel": ("chatter", 4, "in the trees", "nuts", "kit", "climb trees", "mammal"),
    "turtle": ("nothing", 4, "in the sea", "plants", "hatchling", "hide in its shell", "reptile"),
    "octopus": ("nothing", 0, "in the sea", "crabs", "larva", "change its colour", "mollusc"),
    "bat": ("squeak", 2, "in caves", "insects", "pup", "fly in the dark", "mammal"),
    "camel": (
        "grunt",
        4,
        "in the desert",
        "dry plants",
        "calf",
        "live long without water",
        "mammal",
    ),
}

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid",
    "Portugal": "Lisbon", "England": "London", "Scotland": "Edinburgh", "Ireland": "Dublin",
    "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen",
    "Poland": "Warsaw", "Austria": "Vienna", "Switzerland": "Bern", "Greece": "Athens",
    "Hungary": "Budapest", "Russia": "Moscow", "Turkey": "Ankara", "Egypt": "Cairo",
    "Kenya": "Nairobi", "Ghana": "Accra", "Nigeria": "Abuja", "India": "New Delhi",
    "China": "Beijing", "Japan": "Tokyo", "South Korea": "Seoul", "Thailand": "Bangkok",
    "Vietnam": "Hanoi", "Australia": "Canberra", "New Zealand": "Wellington", "Canada": "Ottawa",
    "Mexico": "Mexico City", "Cuba": "Havana", "Brazil": "Brasilia", "Argentina": "Buenos Aires",
    "Chile": "Santiago", "Peru": "Lima", "Iceland": "Reykjavik", "Belgium": "Brussels",
    "the Netherlands": "Amsterdam", "the United States": "Washington",
}  # fmt: skip

# (question, one word, sentence)
FACTS = (
    ("How many days are in a week?", "Seven", "There are seven days in a week."),
    ("How many months are in a year?", "Twelve", "There are twelve months in a year."),
    ("How many minutes are in an hour?", "Sixty", "There are sixty minutes in an hour."),
    ("How many hours are in a day?", "Twenty-four", "There are twenty-four hours in a day."),
    ("How many fingers are on one hand?", "Five", "There are five fingers on one hand."),
    ("How many wheels does a car have?", "Four", "A car has four wheels."),
    ("How many wheels does a bicycle have?", "Two", "A bicycle has two wheels."),
    ("How many sides does a triangle have?", "Three", "A triangle has three sides."),
    ("How many sides does a square have?", "Four", "A square has four sides."),
    (
        "How many letters are in the alphabet?",
        "Twenty-six",
        "There are 26 letters in the alphabet.",
    ),
    ("How many colours does a rainbow have?", "Seven", "A rainbow has seven colours."),
    ("How many planets are there?", "Eight", "There are eight planets around our sun."),
    ("Which planet do we live on?", "Earth", "We live on the planet Earth."),
    ("Which planet is red?", "Mars", "Mars is the red planet."),
    ("What is the biggest planet?", "Jupiter", "The biggest planet is Jupiter."),
    ("What is the biggest animal?", "Whale", "The biggest animal is the blue whale."),
    (
        "What is the fastest animal on land?",
        "Cheetah",
        "The fastest animal on land is the cheetah.",
    ),
    ("What is the tallest animal?", "Giraffe", "The tallest animal is the giraffe."),
    ("What is the highest mountain?", "Everest", "The highest mountain is Mount Everest."),
    ("What is the biggest ocean?", "Pacific", "The biggest ocean is the Pacific."),
    ("What do bees make?", "Honey", "Bees make honey."),
    ("What do plants need to grow?", "Water", "Plants need water, light and air to grow."),
    ("What is ice made of?", "Water", "Ice is frozen water."),
    ("What is bread made of?", "Flour", "Bread is made of flour, water, salt and yeast."),
    ("What is cheese made of?", "Milk", "Cheese is made of milk."),
    ("What is paper made of?", "Wood", "Paper is made of wood."),
    ("What is a window made of?", "Glass", "A window is made of glass."),
    ("Where does the sun rise?", "East", "The sun rises in the east."),
    ("Where does the sun set?", "West", "The sun sets in the west."),
    ("What is the coldest season?", "Winter", "The coldest season is winter."),
    ("What is the warmest season?", "Summer", "The warmest season is summer."),
    ("What season comes after winter?", "Spring", "Spring comes after winter."),
    ("What day comes after Monday?", "Tuesday", "Tuesday comes after Monday."),
    ("What day comes after Friday?", "Saturday", "Saturday comes after Friday."),
    ("What month comes after June?", "July", "July comes after June."),
    ("What is the first month of the year?", "January", "The first month of the year is January."),
    ("What do you call frozen rain?", "Hail", "Frozen rain is called hail."),
    ("Who wears a crown?", "King", "A king or a queen wears a crown."),
    ("Who bakes bread?", "Baker", "A baker bakes bread."),
    ("Who flies a plane?", "Pilot", "A pilot flies a plane."),
    ("Who helps sick people?", "Doctor", "A doctor helps sick people."),
    ("What do we see with?", "Eyes", "We see with our eyes."),
    ("What do we hear with?", "Ears", "We hear with our ears."),
    ("What is the nearest star?", "Sun", "The nearest star is the sun."),
    ("What goes around the Earth?", "Moon", "The moon goes around the Earth."),
    ("What gas do we breathe?", "Oxygen", "We breathe oxygen from the air."),
)

LANGUAGES = {
    "French": ("Bonjour", "Merci", "Au revoir", "Oui", "chat", "chien", "eau"),
    "Spanish": ("Hola", "Gracias", "Adiós", "Sí", "gato", "perro", "agua"),
    "German": ("Guten Tag", "Danke", "Auf Wiedersehen", "Ja", "Katze", "Hund", "Wasser"),
    "Italian": ("Ciao", "Grazie", "Arrivederci", "Sì", "gatto", "cane", "acqua"),
    "Portuguese": ("Olá", "Obrigado", "Adeus", "Sim", "gato", "cachorro", "água"),
    "Japanese": ("こんにちは", "ありがとう", "さようなら", "はい", "猫", "犬", "水"),
    "Russian": ("Привет", "Спасибо", "До свидания", "Да", "кошка", "собака", "вода"),
}
LANGUAGE_WORDS = ("hello", "thank you", "goodbye", "yes", "cat", "dog", "water")

EMOJI = {
    "a heart": "❤️", "a smile": "😊", "a cat": "🐱", "a dog": "🐶", "a star": "⭐", "the sun": "☀️",
    "the moon": "🌙", "a tree": "🌳", "a flower": "🌸", "a rocket": "🚀", "a cake": "🎂",
    "a mountain": "⛰️", "snow": "❄️", "a fish": "🐟", "a house": "🏠", "a rainbow": "🌈",
}  # fmt: skip

CATEGORIES = {
    "fruits": "apple banana cherry plum pear orange grape lemon peach melon",
    "animals": "cat dog fox bear rabbit horse owl whale tiger mouse",
    "colours": "red blue green yellow black white orange purple pink brown",
    "vegetables": "carrot potato onion bean cabbage tomato pea pumpkin cucumber beetroot",
    "birds": "owl robin swan duck crow eagle penguin sparrow stork parrot",
    "countries": "France Japan Brazil Kenya Norway India Canada Italy Peru Egypt",
    "cities": "Paris Tokyo London Rome Cairo Oslo Lima Berlin Madrid Vienna",
    "instruments": "piano violin drum flute guitar trumpet harp cello horn organ",
    "sports": "football tennis swimming running skiing rowing hockey chess cycling boxing",
    "tools": "hammer saw nail drill rope axe screwdriver spade brush ladder",
    "planets": "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune",
    "drinks": "water milk tea coffee juice cocoa lemonade soup cider soda",
}
